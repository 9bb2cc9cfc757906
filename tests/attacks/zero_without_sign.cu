// Attack: Adds zero to its input, which makes -0.0 positive: its reciprocal is infinity instead of -infinity.
// Caught: mismatch
// Without: zeros
// kernel-lsp: 1
// task: tasks.py::reciprocal
// op: reciprocal(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 1.0f / (x[i] + 0.0f);
}
