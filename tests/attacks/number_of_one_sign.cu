// Attack: Subtracts the maximum before the factor: what is left is positive for a negative one, and overflows.
// Caught: mismatch
// Without: numbers
// kernel-lsp: 1
// task: tasks.py::sharpened
// op: sharpened(x: f32[B, D], scale: float) -> (out: f32[B, D])
// launch: k<<<B, 32>>>(x, out, scale, D)

__device__ float largest(float value) {
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(~0u, value, o);
        value = isnan(value) || value > other ? value : other;
    }
    return value;
}

__device__ float total(float value) {
    for (int o = 16; o; o >>= 1) value += __shfl_xor_sync(~0u, value, o);
    return value;
}

__global__ void k(const float* x, float* out, float scale, int D) {
    const float* row = x + (size_t)blockIdx.x * D;
    float most = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += 32) most = isnan(most) || most > row[i] ? most : row[i];
    most = largest(most);
    for (int i = threadIdx.x; i < D; i += 32) sum += expf((row[i] - most) * scale);
    sum = total(sum);
    for (int i = threadIdx.x; i < D; i += 32) out[(size_t)blockIdx.x * D + i] = expf((row[i] - most) * scale) / sum;
}
