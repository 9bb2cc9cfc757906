// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// where: D <= 8192
// launch: staged_norm<64><<<B, 64, D * 4>>>(x, residual, weight, bias, out, B * D, D)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
staged_norm(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
            const float* __restrict__ bias, float* __restrict__ out, int n_elements, int D) {
    extern __shared__ float row[];
    __shared__ float totals[2];
    const int base = blockIdx.x * D;
    for (int start = 0; start < D; start += BLOCK) {
        const int i = start + threadIdx.x;
        row[i] = base + i < n_elements ? x[base + i] + residual[base + i] : 0.0f;
    }
    if (threadIdx.x < 2) totals[threadIdx.x] = 0.0f;
    __syncthreads();

    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) sum += row[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&totals[0], sum);
    __syncthreads();
    const float mean = totals[0] / D;

    float squares = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) squares += (row[i] - mean) * (row[i] - mean);
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_down_sync(0xffffffffu, squares, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&totals[1], squares);
    __syncthreads();
    const float scale = rsqrtf(totals[1] / D + 1e-5f);
    for (int i = threadIdx.x; i < D; i += BLOCK) out[base + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
