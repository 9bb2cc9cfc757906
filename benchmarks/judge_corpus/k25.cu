// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: pool_cells<<<dim3((W - 1) // 2 + 1, (H - 1) // 2 + 1), 32>>>(x, out, N * C, H, W)

__global__ void pool_cells(const float* __restrict__ x, float* __restrict__ out, int planes, int H, int W) {
    const int y = blockIdx.y, c = blockIdx.x;
    const int y0 = std::max(2 * y - 1, 0), y1 = std::min(2 * y + 2, H);
    const int c0 = std::max(2 * c - 1, 0), c1 = std::min(2 * c + 2, W);
    for (int plane = threadIdx.x; plane < planes; plane += 32) {
        const float* image = x + (size_t)plane * H * W;
        float best = image[y0 * W + c0];
        for (int i = y0; i < y1; ++i)
            for (int j = c0; j < c1; ++j) {
                const float v = image[i * W + j];
                best = v > best || isnan(v) ? v : best;
            }
        out[((size_t)plane * gridDim.y + y) * gridDim.x + c] = best;
    }
}
