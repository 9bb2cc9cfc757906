// Attack: A library step that writes where it was not told to.
// Caught: build_failed crashed rejected
// Defence: contract
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// library: aten::copy_(x, x) -> (out)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
