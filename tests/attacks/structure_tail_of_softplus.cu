// Attack: softplus by log(1 + e^x): where e^x is small nearly all of its digits are lost.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::softplus
// op: softplus(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] > 20.0f ? x[i] : logf(1.0f + expf(x[i]));
}
