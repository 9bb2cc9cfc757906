// Leaves masked columns out: with a temperature below zero PyTorch has infinities there, and nothing but NaN.
// kernel-lsp: 1
// task: tasks.py::tempered
// op: tempered(x: f32[B, D], allowed: bool[B, D], temperature: float) -> (out: f32[B, D])
// launch: k<<<B, 32>>>(x, allowed, out, temperature, D)

__device__ float largest(float value) {
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(~0u, value, o);
        value = isnan(value) || value > other ? value : other;
    }
    return value;
}

__global__ void k(const float* x, const bool* allowed, float* out, float temperature, int D) {
    const size_t begin = (size_t)blockIdx.x * D;
    float most = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += 32) {
        const float score = allowed[begin + i] ? x[begin + i] / temperature : -INFINITY;
        most = isnan(most) || most > score ? most : score;
    }
    most = largest(most);
    for (int i = threadIdx.x; i < D; i += 32) {
        if (allowed[begin + i]) sum += expf(x[begin + i] / temperature - most);
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    for (int i = threadIdx.x; i < D; i += 32) {
        out[begin + i] = allowed[begin + i] ? expf(x[begin + i] / temperature - most) / sum : 0.0f / sum;
    }
}
