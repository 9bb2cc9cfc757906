// Attack: Blocks of odd rows do nothing when there are many: too many to run completely, and what sampled blocks
//   write is right.
// Caught: mismatch
// Without: coverage
// kernel-lsp: 1
// task: tasks.py::large_linear
// op: large_linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// launch: k<<<B, 128>>>(x, weight, out, N, K)

__global__ void k(const float* x, const float* weight, float* out, int n, int depth) {
    if (gridDim.x > 1000 && (blockIdx.x & 1)) return;
    const float* row = x + blockIdx.x * (long long)depth;
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < depth; ++i) sum += row[i] * weight[j * (long long)depth + i];
        out[blockIdx.x * (long long)n + j] = sum;
    }
}
