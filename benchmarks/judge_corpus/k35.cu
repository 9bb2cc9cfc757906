// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: max_window<<<ceil_div(N * C * ((H - 1) // 2 + 1) * ((W - 1) // 2 + 1), 256), 256>>>(x, out, N * C, H, W)

__global__ void max_window(const float* __restrict__ x, float* __restrict__ out, int planes, int H, int W) {
    const int oh = (H - 1) / 2 + 1, ow = (W - 1) / 2 + 1;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= planes * oh * ow) return;
    const int column = i % ow, row = i / ow % oh;
    const float* image = x + (size_t)(i / (ow * oh)) * H * W;
    float best = -INFINITY;
#pragma unroll
    for (int dy = -1; dy <= 1; ++dy) {
        const int y = 2 * row + dy;
        if (y < 0 || y >= H) continue;
#pragma unroll
        for (int dx = -1; dx <= 1; ++dx) {
            const int c = 2 * column + dx;
            if (c >= 0 && c < W) best = fmaxf(best, __ldg(image + y * W + c));
        }
    }
    out[i] = best;
}
