// Attack: When there are many rows two blocks compute the same one: every block writes as much as it should, and the
//   odd rows are missing. The contract leaves no small size to run completely.
// Caught: mismatch
// Without: coverage
// kernel-lsp: 1
// task: tasks.py::large_linear
// op: large_linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// where: B == 1024 and N == 1024 and K == 512
// launch: k<<<B, 128>>>(x, weight, out, N, K)

__global__ void k(const float* x, const float* weight, float* out, int n, int depth) {
    const int b = blockIdx.x & ~1;
    const float* row = x + b * (long long)depth;
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < depth; ++i) sum += row[i] * weight[j * (long long)depth + i];
        out[b * (long long)n + j] = sum;
    }
}
