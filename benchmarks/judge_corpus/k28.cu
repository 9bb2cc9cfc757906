// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: pool_rows<<<dim3((H - 1) // 2 + 1, N * C), 64>>>(x, out, H, W)

__global__ void __launch_bounds__(64) pool_rows(const float* __restrict__ x, float* __restrict__ out, int H, int W) {
    const int ow = (W - 1) / 2 + 1;
    const float* image = x + (size_t)blockIdx.y * H * W;
    const int top = 2 * blockIdx.x - 1, bottom = min(2 * (int)blockIdx.x + 1, H - 1);
    for (int column = threadIdx.x; column < ow; column += 64) {
        const int left = max(2 * column - 1, 0), right = min(2 * column + 1, W - 1);
        float best = -INFINITY;
        for (int y = top; y <= bottom; ++y)
            for (int c = left; c <= right; ++c) {
                const float v = image[y * W + c];
                best = v > best || isnan(v) ? v : best;
            }
        out[((size_t)blockIdx.y * gridDim.x + blockIdx.x) * ow + column] = best;
    }
}
