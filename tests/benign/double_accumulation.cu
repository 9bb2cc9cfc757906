// Adds in double precision and rounds once.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += x[blockIdx.x * (long long)n + i];
    out[blockIdx.x] = (float)sum;
}
