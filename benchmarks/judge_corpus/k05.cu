// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// launch: double_moments<<<B, 64>>>(x, residual, weight, bias, out, D)

__global__ void __launch_bounds__(64)
double_moments(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
               const float* __restrict__ bias, float* __restrict__ out, int D) {
    __shared__ double sums[2], squares[2];
    const size_t base = (size_t)blockIdx.x * D;
    double sum = 0.0, square = 0.0;
    for (int i = threadIdx.x; i < D; i += 64) {
        const float v = x[base + i] + residual[base + i];
        out[base + i] = v;
        sum += v;
        square += (double)v * v;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
        square += __shfl_down_sync(0xffffffffu, square, offset);
    }
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = sum;
        squares[threadIdx.x / 32] = square;
    }
    __syncthreads();
    const double mean = (sums[0] + sums[1]) / D;
    const double variance = (squares[0] + squares[1]) / D - mean * mean;
    const float scale = (float)rsqrt((variance < 0.0 ? 0.0 : variance) + 1e-5);
    for (int i = threadIdx.x; i < D; i += 64)
        out[base + i] = (float)(out[base + i] - mean) * scale * weight[i] + bias[i];
}
