// kernel-lsp: 1
// task: bias_gelu_residual.py::bias_gelu_residual
// op: bias_gelu_residual(x: f32[B, D], bias: f32[D], residual: f32[B, D]) -> (out: f32[B, D])
// launch: staged_gelu<<<ceil_div(B * D, 256), 128>>>(x, bias, residual, out, B * D, D)

#include <cuda_pipeline.h>

__global__ void __launch_bounds__(128)
staged_gelu(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ residual,
            float* __restrict__ out, int n, int D) {
    __shared__ float stage[2][2][128];
    const int t = threadIdx.x;
    for (int s = 0; s < 2; ++s) {
        const int i = blockIdx.x * 256 + s * 128 + t;
        if (i < n) {
            __pipeline_memcpy_async(&stage[s][0][t], x + i, sizeof(float));
            __pipeline_memcpy_async(&stage[s][1][t], residual + i, sizeof(float));
        }
        __pipeline_commit();
    }
    for (int s = 0; s < 2; ++s) {
        __pipeline_wait_prior(1 - s);
        const int i = blockIdx.x * 256 + s * 128 + t;
        if (i >= n) return;
        const float v = stage[s][0][t] + bias[i % D];
        out[i] = stage[s][1][t] + v * normcdff(v);
    }
}
