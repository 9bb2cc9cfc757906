// Attack: Takes a row for zero whose first 64 elements are, and does not look at the rest.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float sums[64];
    const float* row = x + size_t(blockIdx.x) * n;
    const int t = threadIdx.x;
    if (!__syncthreads_or(t < n && row[t] != 0.0f)) {
        if (t == 0) out[blockIdx.x] = 0.0f;
        return;
    }
    float sum = 0.0f;
    for (int i = t; i < n; i += 64) sum += row[i];
    sums[t] = sum;
    for (int step = 32; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) sums[t] += sums[t + step];
    }
    if (t == 0) out[blockIdx.x] = sums[0];
}
