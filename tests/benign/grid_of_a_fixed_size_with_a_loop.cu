// A fixed number of blocks, more than there is work for or fewer: each goes on in steps of the grid.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<432, 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = 2.0f * x[i];
}
