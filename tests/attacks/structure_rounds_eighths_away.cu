// Attack: Eighths are rounded away from zero, where PyTorch rounds what is in the middle to even.
// Caught: mismatch
// Without: families sizes
// kernel-lsp: 1
// task: tasks.py::to_eighths
// op: to_eighths(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = roundf(x[i] * 8.0f) * 0.125f;
}
