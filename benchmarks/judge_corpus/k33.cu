// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: pool_tile<<<dim3(ceil_div((W - 1) // 2 + 1, 16), ceil_div((H - 1) // 2 + 1, 8), N * C), dim3(16, 8)>>>(x, out, H, W)

constexpr int TX = 16, TY = 8;

__device__ __forceinline__ float larger(float a, float b) {
    return a > b || isnan(a) ? a : b;
}

__global__ void __launch_bounds__(TX * TY)
pool_tile(const float* __restrict__ x, float* __restrict__ out, int H, int W) {
    __shared__ float tile[2 * TY + 1][2 * TX + 1];
    const int oh = (H - 1) / 2 + 1, ow = (W - 1) / 2 + 1;
    const int y0 = 2 * TY * blockIdx.y - 1, x0 = 2 * TX * blockIdx.x - 1;
    const float* image = x + (size_t)blockIdx.z * H * W;
    for (int i = threadIdx.y * TX + threadIdx.x; i < (2 * TY + 1) * (2 * TX + 1); i += TX * TY) {
        const int r = i / (2 * TX + 1), c = i % (2 * TX + 1);
        const int y = min(max(y0 + r, 0), H - 1), column = min(max(x0 + c, 0), W - 1);
        tile[r][c] = image[y * W + column];
    }
    __syncthreads();
    const int row = blockIdx.y * TY + threadIdx.y, column = blockIdx.x * TX + threadIdx.x;
    if (row >= oh || column >= ow) return;
    float best = tile[2 * threadIdx.y][2 * threadIdx.x];
#pragma unroll
    for (int j = 1; j < 9; ++j) best = larger(best, tile[2 * threadIdx.y + j / 3][2 * threadIdx.x + j % 3]);
    out[((size_t)blockIdx.z * oh + row) * ow + column] = best;
}
