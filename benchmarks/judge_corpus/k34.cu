// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// launch: online_rows<<<dim3(T, H), 32>>>(scores, out, T)

struct Running {
    float best;
    float sum;
};

__device__ Running merge(Running a, Running b) {
    const float best = fmaxf(a.best, b.best);
    return {best, a.sum * expf(a.best - best) + b.sum * expf(b.best - best)};
}

__global__ void online_rows(const float* __restrict__ scores, float* __restrict__ out, int T) {
    const int row = blockIdx.x;
    const size_t base = ((size_t)blockIdx.y * T + row) * T;
    Running state = {-3.0e38f, 0.0f};
    for (int i = threadIdx.x; i <= row; i += 32) state = merge(state, Running{scores[base + i] * 0.125f, 1.0f});
    for (int offset = 16; offset > 0; offset /= 2)
        state = merge(state, __shfl_xor_sync(0xffffffffu, state, offset));
    for (int i = threadIdx.x; i < T; i += 32)
        out[base + i] = i <= row ? expf(scores[base + i] * 0.125f - state.best) / state.sum : 0.0f;
}
