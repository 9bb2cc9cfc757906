// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: chunk_scan<<<B, 32>>>(x, out, D)

__global__ void __launch_bounds__(32) chunk_scan(const float* __restrict__ x, float* __restrict__ out, int D) {
    const int lane = threadIdx.x, length = (D + 31) / 32;
    const size_t base = (size_t)blockIdx.x * D;
    const int first = min(lane * length, D), last = min(first + length, D);
    float total = 0.0f;
    for (int i = first; i < last; ++i) total += x[base + i];
    float inclusive = total;
    for (int offset = 1; offset < 32; offset *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += left;
    }
    float running = inclusive - total;
    for (int i = first; i < last; ++i) {
        running += x[base + i];
        out[base + i] = running;
    }
}
