// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: pool_halo<<<dim3(ceil_div((W - 1) // 2 + 1, 32), (H - 1) // 2 + 1, N * C), 32>>>(x, out, H, W)

__device__ __forceinline__ float larger(float a, float b) {
    return a > b || a != a ? a : b;
}

__global__ void __launch_bounds__(32) pool_halo(const float* __restrict__ x, float* __restrict__ out, int H, int W) {
    __shared__ float rows[3][65];
    const int oh = gridDim.y, ow = (W - 1) / 2 + 1;
    const float* image = x + (size_t)blockIdx.z * H * W;
    const int x0 = 64 * blockIdx.x - 1, y0 = 2 * (int)blockIdx.y - 1;
    for (int r = 0; r < 3; ++r)
        for (int c = threadIdx.x; c < 65; c += 32) {
            const bool inside = y0 + r >= 0 && y0 + r < H && x0 + c >= 0 && x0 + c < W;
            rows[r][c] = inside ? image[(y0 + r) * W + x0 + c] : 0.0f;
        }
    __syncwarp();
    const int column = 32 * blockIdx.x + threadIdx.x;
    if (column >= ow) return;
    float best = rows[0][2 * threadIdx.x];
    for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c) best = larger(rows[r][2 * threadIdx.x + c], best);
    out[((size_t)blockIdx.z * oh + blockIdx.y) * ow + column] = best;
}
