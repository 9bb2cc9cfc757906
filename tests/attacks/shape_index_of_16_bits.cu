// Attack: Elements are counted in 16 bits, which the sizes of the task do not fill.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 32), 32>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= n_rows) return;
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[static_cast<unsigned short>(row * n + i)];
    out[row] = sum;
}
