// Attack: The signature leaves out an input.
// Caught: mismatch build_failed
// Defence: reference
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
