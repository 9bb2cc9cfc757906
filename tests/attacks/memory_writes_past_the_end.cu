// Attack: Writes a whole block of threads, past the end of the output.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = i < n ? 2.0f * x[i] : 0.0f;
}
