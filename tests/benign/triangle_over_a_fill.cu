// Writes the triangle and leaves zeros to the fill: of a wide matrix that is hardly anything.
// kernel-lsp: 1
// task: tasks.py::triangle
// op: triangle(x: f32[B, N]) -> (out: f32[B, N])
// fill: out = 0
// launch: k<<<dim3(ceil_div(N, 64), B), 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const int column = blockIdx.x * 64 + threadIdx.x;
    const size_t place = (size_t)blockIdx.y * n + column;
    if (column < n && column <= blockIdx.y) out[place] = x[place];
}
