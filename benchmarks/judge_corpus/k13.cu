// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: fused<<<min(ceil_div(B * D, 512), 264), 256>>>(x, bias, residual, out, B * D, D)

__global__ void __launch_bounds__(256)
fused(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ residual,
      float* __restrict__ out, int n, int D) {
    for (unsigned i = blockIdx.x * 256u + threadIdx.x; i < (unsigned)n; i += gridDim.x * 256u) {
        const float v = x[i] + bias[i % (unsigned)D];
        out[i] = fmaf(0.5f * v, erfcf(v * -0.70710678118654752f), residual[i]);
    }
}
