// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// launch: one_pass<<<ceil_div(B, 8), dim3(32, 8)>>>(x, residual, weight, bias, out, B, D)

__global__ void __launch_bounds__(256)
one_pass(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
         const float* __restrict__ bias, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 8 + threadIdx.y;
    if (row >= B) return;
    const size_t base = (size_t)row * D;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < D; i += 32) {
        const float v = x[base + i] + residual[base + i];
        sum += v;
        squares = fmaf(v, v, squares);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    const float mean = sum / D;
    const float scale = rsqrtf(fmaxf(squares / D - mean * mean, 0.0f) + 1e-5f);
    for (int i = threadIdx.x; i < D; i += 32) {
        const float v = x[base + i] + residual[base + i];
        out[base + i] = (v - mean) * scale * weight[i] + bias[i];
    }
}
