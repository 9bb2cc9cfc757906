// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// launch: layer_norm_block<<<B, 128>>>(x, residual, weight, bias, out, D)

__global__ void __launch_bounds__(128)
layer_norm_block(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
                 const float* __restrict__ bias, float* __restrict__ out, int D) {
    __shared__ float partial[4];
    const size_t base = (size_t)blockIdx.x * D;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += 128) sum += x[base + i] + residual[base + i];
    const float mean = block_sum(sum, partial) / D;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < D; i += 128) {
        const float centered = x[base + i] + residual[base + i] - mean;
        squares += centered * centered;
    }
    const float scale = rsqrtf(block_sum(squares, partial) / D + 1e-5f);
    for (int i = threadIdx.x; i < D; i += 128)
        out[base + i] = (x[base + i] + residual[base + i] - mean) * scale * weight[i] + bias[i];
}

__device__ float block_sum(float v, float* partial) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    return partial[0] + partial[1] + partial[2] + partial[3];
}
