// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// launch: pool<<<ceil_div(N * C * ((H - 1) // 2 + 1) * ((W - 1) // 2 + 1), 128), 128>>>(x, out, N * C, H, W)

__global__ void __launch_bounds__(128) pool(const float* __restrict__ x, float* __restrict__ out, int planes, int H, int W) {
    const int oh = (H - 1) / 2 + 1, ow = (W - 1) / 2 + 1;
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= planes * oh * ow) return;
    const int column = i % ow, row = i / ow % oh, plane = i / (ow * oh);
    const float* image = x + (size_t)plane * H * W;
    float best = -INFINITY;
    for (int y = max(2 * row - 1, 0); y <= min(2 * row + 1, H - 1); ++y)
        for (int c = max(2 * column - 1, 0); c <= min(2 * column + 1, W - 1); ++c) {
            const float v = image[y * W + c];
            if (!(v <= best)) best = v;
        }
    out[i] = best;
}
