// The running maximum with its place: of equal ones the last, as PyTorch has it.
// kernel-lsp: 1
// task: tasks.py::cumulative_maximum
// op: cumulative_maximum(x: f32[B, N]) -> (values: f32[B, N], indices: i64[B, N])
// launch: k<<<ceil_div(B, 32), 32>>>(x, values, indices, B, N)

__global__ void k(const float* x, float* values, long long* indices, int rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    float best = x[row * (long long)n];
    int place = 0;
    for (int i = 0; i < n; ++i) {
        const float v = x[row * (long long)n + i];
        if (isnan(v) || v >= best) best = v, place = i;
        values[row * (long long)n + i] = best;
        indices[row * (long long)n + i] = place;
    }
}
