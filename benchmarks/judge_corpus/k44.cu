// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// where: D <= 8192
// launch: fused_norm<128><<<B, 128, D * 4>>>(x, residual, weight, bias, out, D)

template <int BLOCK>
__device__ float block_sum(float v, float* partial) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) total += partial[i];
    __syncthreads();
    return total;
}

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
fused_norm(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
           const float* __restrict__ bias, float* __restrict__ out, int D) {
    extern __shared__ float row[];
    __shared__ float partial[BLOCK / 32];
    const size_t base = (size_t)blockIdx.x * D;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) {
        row[i] = x[base + i] + residual[base + i];
        sum += row[i];
    }
    const float mean = block_sum<BLOCK>(sum, partial) / D;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) squares += (row[i] - mean) * (row[i] - mean);
    const float variance = block_sum<BLOCK>(squares, partial) / max(D - 1, 1);
    const float scale = rsqrtf(variance + 1e-5f);
    for (int i = threadIdx.x; i < D; i += BLOCK) out[base + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
