// Attack: The variance of a single number is said to be zero, where PyTorch divides by zero and gives NaN.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::variance
// op: variance(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 32>>>(x, out, N)

__device__ float total(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += row[i];
    const float mean = total(sum) / n;
    for (int i = threadIdx.x; i < n; i += 32) squares += (row[i] - mean) * (row[i] - mean);
    squares = total(squares);
    if (threadIdx.x == 0) out[blockIdx.x] = squares / max(n - 1, 1);
}
