// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// launch: causal_rows<<<dim3(ceil_div(T, 4), H), dim3(32, 4)>>>(scores, out, T)

constexpr float LOWEST = -3.402823466e+38f;

__global__ void __launch_bounds__(128)
causal_rows(const float* __restrict__ scores, float* __restrict__ out, int T) {
    const int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= T) return;
    const size_t base = ((size_t)blockIdx.y * T + row) * T;
    float best = LOWEST, sum = 0.0f;
    for (int i = threadIdx.x; i <= row; i += 32) {
        const float v = scores[base + i] * 0.125f;
        const float next = fmaxf(best, v);
        sum = sum * expf(best - next) + expf(v - next);
        best = next;
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        const float other_best = __shfl_xor_sync(0xffffffffu, best, offset);
        const float other_sum = __shfl_xor_sync(0xffffffffu, sum, offset);
        const float next = fmaxf(best, other_best);
        sum = sum * expf(best - next) + other_sum * expf(other_best - next);
        best = next;
    }
    for (int i = threadIdx.x; i < T; i += 32)
        out[base + i] = (i <= row ? expf(scores[base + i] * 0.125f - best) : 0.0f) / sum;
}
