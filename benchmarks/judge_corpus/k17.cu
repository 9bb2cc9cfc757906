// kernel-lsp: 1
// task: max_pool.py::max_pool
// op: max_pool(x: f32[N, C, H, W]) -> (out: f32[N, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// where: N * C <= 65535 and H <= 65535 and N * C * H * W < 2147483648
// scratch: wide: f32[N, C, H, (W - 1) // 2 + 1]
// launch: along_rows<<<ceil_div(N * C * H * ((W - 1) // 2 + 1), 128), 128>>>(x, wide, N * C * H, W)
// launch: along_columns<<<ceil_div(N * C * ((H - 1) // 2 + 1) * ((W - 1) // 2 + 1), 128), 128>>>(wide, out, N * C, H, (W - 1) // 2 + 1)

__device__ float maximum(float a, float b) {
    return isnan(a) || a > b ? a : b;
}

__global__ void along_rows(const float* __restrict__ x, float* __restrict__ wide, int rows, int W) {
    const int ow = (W + 1) / 2, i = blockIdx.x * 128 + threadIdx.x;
    if (i >= rows * ow) return;
    const int row = i / ow, c = 2 * (i - row * ow);
    const float* from = x + (size_t)row * W;
    float best = from[c];
    if (c > 0) best = maximum(best, from[c - 1]);
    if (c + 1 < W) best = maximum(best, from[c + 1]);
    wide[i] = best;
}

__global__ void along_columns(const float* __restrict__ wide, float* __restrict__ out, int planes, int H, int ow) {
    const int oh = (H + 1) / 2, i = blockIdx.x * 128 + threadIdx.x;
    if (i >= planes * oh * ow) return;
    const int plane = i / (oh * ow), y = i / ow % oh * 2, c = i % ow;
    const float* from = wide + ((size_t)plane * H + y) * ow + c;
    float best = from[0];
    if (y > 0) best = maximum(best, from[-ow]);
    if (y + 1 < H) best = maximum(best, from[ow]);
    out[i] = best;
}
