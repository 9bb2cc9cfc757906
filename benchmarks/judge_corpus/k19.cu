// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: bias_gelu<<<ceil_div(B * D, 256), 256>>>(x, bias, residual, out, B * D, D)

__device__ __forceinline__ float gelu(float v) {
    const float inner = 0.7978845608028654f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.0f + tanhf(inner));
}

__global__ void bias_gelu(const float* __restrict__ x, const float* __restrict__ bias,
                          const float* __restrict__ residual, float* __restrict__ out, int n, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = residual[i] + gelu(x[i] + bias[i % D]);
}
