// Compensated summation, with care that no infinity turns the compensation into NaN.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    float sum = 0.0f, lost = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float v = x[blockIdx.x * (long long)n + i];
        const float term = isfinite(v) && isfinite(sum) ? __fsub_rn(v, lost) : v;
        const float next = __fadd_rn(sum, term);
        lost = isfinite(next) ? __fsub_rn(__fsub_rn(next, sum), term) : 0.0f;
        sum = next;
    }
    out[blockIdx.x] = sum;
}
