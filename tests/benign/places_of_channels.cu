// The place of the maximum along a dim in the middle, one thread for each.
// kernel-lsp: 1
// task: tasks.py::arg_max_of_channels
// op: arg_max_of_channels(x: f32[B, C, L]) -> (out: i64[B, L])
// launch: k<<<ceil_div(B * L, 64), 64>>>(x, out, B * L, C, L)

__global__ void k(const float* x, long long* out, int total, int channels, int length) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= total) return;
    const float* from = x + (i / length) * (long long)channels * length + i % length;
    float best = from[0];
    int place = 0;
    for (int c = 1; c < channels && !isnan(best); ++c) {
        const float v = from[c * (long long)length];
        if (v > best || isnan(v)) best = v, place = c;
    }
    out[i] = place;
}
