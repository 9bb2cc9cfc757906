// Attack: The maximum before an exponential begins with -100: of lower numbers nothing is left.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::log_softmax
// op: log_softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + (size_t)blockIdx.x * n;
    float top = -100.0f, sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) top = row[i] > top || isnan(row[i]) ? row[i] : top;
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, top, o);
        top = other > top || isnan(other) ? other : top;
    }
    for (int i = threadIdx.x; i < n; i += 32) sum += expf(row[i] - top);
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int i = threadIdx.x; i < n; i += 32) out[(size_t)blockIdx.x * n + i] = row[i] - top - logf(sum);
}
