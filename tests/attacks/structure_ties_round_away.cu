// Attack: Rounds halves away from zero, PyTorch to even; no number drawn at random is a half.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::round_to_even
// op: round_to_even(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = roundf(x[i]);
}
