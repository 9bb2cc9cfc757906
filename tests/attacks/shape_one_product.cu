// Attack: The contract is that there are as many elements as listed, and the code takes rows of the listed length.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// where: B * N == 16384
// launch: k<<<ceil_div(B, 64), 64>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    float sum = 0.0f;
    for (int i = 0; i < 256 && i < n; ++i) sum += x[size_t(row) * n + i];
    out[row] = sum;
}
