// The textbook formula: NaN for an infinite maximum, where PyTorch has the infinity.
// kernel-lsp: 1
// task: tasks.py::logsumexp
// op: logsumexp(x: f32[N, D]) -> (out: f32[N])
// launch: k<<<ceil_div(N, 4), 128>>>(x, out, N, D)
__global__ void k(const float* __restrict__ x, float* __restrict__ o, int N, int D) {
    int n = blockIdx.x * 4 + threadIdx.x / 32, l = threadIdx.x % 32;
    if (n >= N) return;
    float m = -INFINITY, s = 0;
    for (int i = l; i < D; i += 32) m = fmaxf(m, x[(size_t)n * D + i]);
    for (int k = 16; k; k >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, k));
    for (int i = l; i < D; i += 32) s += expf(x[(size_t)n * D + i] - m);
    for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(~0u, s, k);
    if (l == 0) o[n] = m + logf(s);
}
