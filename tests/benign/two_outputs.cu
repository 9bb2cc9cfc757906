// Two outputs of different shapes from two launches.
// kernel-lsp: 1
// task: tasks.py::first_and_rest
// op: first_and_rest(x: f32[B, N]) -> (a: f32[B], b: f32[N])
// launch: maxima<<<ceil_div(B, 32), 32>>>(x, a, B, N)
// launch: sums<<<ceil_div(N, 32), 32>>>(x, b, B, N)

__global__ void maxima(const float* x, float* a, int rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    float best = x[row * (long long)n];
    for (int i = 1; i < n; ++i) {
        const float v = x[row * (long long)n + i];
        best = v > best || isnan(v) ? v : best;
    }
    a[row] = best;
}

__global__ void sums(const float* x, float* b, int rows, int n) {
    const int column = blockIdx.x * 32 + threadIdx.x;
    if (column >= n) return;
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) sum += x[row * (long long)n + column];
    b[column] = sum;
}
