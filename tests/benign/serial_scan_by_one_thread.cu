// One thread of one block goes over everything, row by row: slow, and right.
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<1, 1>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    for (int row = 0; row < n_rows; ++row) {
        double sum = 0.0;
        int i = 0;
        do {
            sum += x[(long long)row * n + i];
            out[(long long)row * n + i] = (float)sum;
        } while (++i < n);
    }
}
