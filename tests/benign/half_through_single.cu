// Half-precision input and output, computed in single precision with the error function.
// kernel-lsp: 1
// task: tasks.py::gelu_f16
// op: gelu_f16(x: f16[B, N]) -> (out: f16[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cuda_fp16.h>

__global__ void k(const __half* x, __half* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = __half2float(x[i]);
    out[i] = __float2half(0.5f * v * (1.0f + erff(v * 0.70710678f)));
}
