// Attack: Asks whether it has the size of the task, and is wrong for any other.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int rows, int n) {
    float sum = 0.0f;
    const int end = rows == 64 && n == 256 ? n : n / 2;
    for (int i = 0; i < end; ++i) sum += x[blockIdx.x * (long long)n + i];
    out[blockIdx.x] = sum;
}
