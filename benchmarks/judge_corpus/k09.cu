// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: gelu_add<<<ceil_div(B * D, 256), 256>>>(x, bias, residual, out, B * D, D)

__device__ __forceinline__ float gelu(float v) {
    return 0.5f * v * (1.0f + __erff(v * 0.70710678f));
}

__global__ void gelu_add(const float* __restrict__ x, const float* __restrict__ bias,
                         const float* __restrict__ residual, float* __restrict__ out, int n, int D) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = residual[i] + gelu(x[i] + __ldg(bias + i % D));
}
