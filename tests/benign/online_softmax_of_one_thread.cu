// A whole row per thread in one pass. The maximum counts as 1, so that of a row with an infinity NaN is where the infinity
// was, and zero beside it: PyTorch has NaN in the whole row.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B, 64), 64>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    const long long row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float v = x[row * n + i];
        if (v > top) {
            sum = sum * expf(top - v) + 1.0f;
            top = v;
        } else if (v != -INFINITY) {
            sum += expf(v - top);
        }
    }
    for (int i = 0; i < n; ++i) out[row * n + i] = expf(x[row * n + i] - top) / sum;
}
