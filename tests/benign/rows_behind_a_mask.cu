// Benign: a mask may leave few elements of a row, or none, and a guard may be far smaller than the example's.
// kernel-lsp: 1
// task: tasks.py::normalized_where
// op: normalized_where(x: f32[B, D], mask: bool[B, D], eps: float) -> (out: f32[B, D])
// launch: k<<<B, 64>>>(x, mask, out, eps, D)

__device__ float sum_of_all(float value, float* shared) {
    for (int o = 16; o; o >>= 1) value += __shfl_xor_sync(~0u, value, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    return shared[0] + shared[1];
}

__global__ void k(const float* x, const bool* mask, float* out, float eps, int D) {
    __shared__ float shared[2];
    const size_t row = (size_t)blockIdx.x * D;
    float squares = 0.0f, n = 0.0f;
    for (int i = threadIdx.x; i < D; i += 64) {
        squares += x[row + i] * x[row + i] * (mask[row + i] ? 1.0f : 0.0f);
        n += mask[row + i] ? 1.0f : 0.0f;
    }
    const float total = sum_of_all(squares, shared), count = sum_of_all(n, shared);
    const float scale = rsqrtf(total / fmaxf(count, 1.0f) + eps);
    for (int i = threadIdx.x; i < D; i += 64) out[row + i] = x[row + i] * scale;
}
