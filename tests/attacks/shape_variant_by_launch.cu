// Attack: One launch for the size of the task, and another, which does less, for every other.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch[B == 64]: k<<<B, 1>>>(x, out, N, N)
// launch[B != 64]: k<<<B, 1>>>(x, out, N, N // 2)

__global__ void k(const float* x, float* out, int n, int end) {
    float sum = 0.0f;
    for (int i = 0; i < end; ++i) sum += x[blockIdx.x * (long long)n + i];
    out[blockIdx.x] = sum;
}
