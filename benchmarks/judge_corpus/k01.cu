// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: gelu_rows<<<B, 128>>>(x, bias, residual, out, D)

__device__ __forceinline__ float normal_cdf(float v) {
    const float z = fabsf(v) * 0.70710678f;
    const float t = 1.0f / fmaf(0.47047f, z, 1.0f);
    const float poly = t * fmaf(t, fmaf(t, 0.7478556f, -0.0958798f), 0.3480242f);
    const float tail = 0.5f * poly * expf(-z * z);
    return v < 0.0f ? tail : 1.0f - tail;
}

__global__ void __launch_bounds__(128)
gelu_rows(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ residual,
          float* __restrict__ out, int D) {
    const size_t base = (size_t)blockIdx.x * D;
    for (int i = threadIdx.x; i < D; i += 128) {
        const float v = x[base + i] + bias[i];
        out[base + i] = fmaf(v, normal_cdf(v), residual[base + i]);
    }
}
