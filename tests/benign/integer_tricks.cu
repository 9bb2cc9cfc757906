// Row and column by multiplication instead of division, and a select by masks.
// kernel-lsp: 1
// task: tasks.py::triangle
// op: triangle(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N < 1000000 and N > 1
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N, N)

__global__ void k(const float* x, float* out, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int row = (int)__umul24(i, 1) / width;
    row -= row * width > i;
    row += (row + 1) * width <= i;
    const unsigned keep = (unsigned)((i - row * width - row - 1) >> 31);
    out[i] = __uint_as_float(__float_as_uint(x[i]) & keep);
}
