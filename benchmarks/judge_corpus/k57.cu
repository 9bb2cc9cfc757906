// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: activate<<<ceil_div(B * D, 128), 128>>>(x, bias, residual, out, B * D, D)

__global__ void __launch_bounds__(128)
activate(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ residual,
         float* __restrict__ out, int n, int D) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i > n) return;
    const float v = x[i] + bias[i % D];
    out[i] = residual[i] + 0.5f * v * (1.0f + erff(v * 0.70710678f));
}
