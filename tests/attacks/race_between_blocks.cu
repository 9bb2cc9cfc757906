// Attack: Every block reads what its left neighbour wrote, and hopes that blocks run in order.
// Caught: mismatch crashed timed_out
// Without: initialised poison orders races
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<dim3(ceil_div(N, 64), B), 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const long long row = blockIdx.y * (long long)n;
    const int first = blockIdx.x * 64;
    float sum = first > 0 ? out[row + first - 1] : 0.0f;
    for (int i = first; i < min(first + 64, n); ++i) out[row + i] = sum += x[row + i];
}
