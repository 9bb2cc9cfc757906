// Attack: Sums 200,000 rows at most: those behind them are zeros of the plan's fill.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// fill: out = 0
// launch: k<<<200000, 32>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    if (blockIdx.x >= n_rows) return;
    const float* row = x + (size_t)blockIdx.x * n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += row[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
