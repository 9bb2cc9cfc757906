// Attack: The grid stops at 20,000 rows, and the kernel takes one row a block.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<min(B, 20000), 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const size_t first = size_t(blockIdx.x) * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[first + i] = 2.0f * x[first + i];
}
