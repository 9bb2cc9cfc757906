// Splits a long row of blocks over two dims of the grid: the last line of it is mostly idle.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<dim3(5000, ceil_div(ceil_div(B * N, 256), 5000)), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const size_t i = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
