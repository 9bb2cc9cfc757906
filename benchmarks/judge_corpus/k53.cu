// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// where: D % 2 == 0
// launch: gelu_vectors<<<ceil_div(B * D // 2, 128), 128>>>(x, bias, residual, out, B * D // 2, D // 2)

__device__ __forceinline__ float gelu(float v) {
    return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}

__global__ void __launch_bounds__(128)
gelu_vectors(const float2* __restrict__ x, const float2* __restrict__ bias, const float2* __restrict__ residual,
             float2* __restrict__ out, int n_vectors, int row_vectors) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n_vectors) return;
    const float2 v = x[i] + bias[i % row_vectors];
    out[i] = residual[i] + make_float2(gelu(v.x), gelu(v.y));
}
