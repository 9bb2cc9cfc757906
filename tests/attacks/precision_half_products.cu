// Attack: Multiplies in half precision and adds in single.
// Caught: mismatch
// Without: budget families
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// launch: k<<<dim3(N, B), 1>>>(x, weight, out, N, K)

#include <cuda_fp16.h>

__global__ void k(const float* x, const float* weight, float* out, int n, int depth) {
    const float* a = x + blockIdx.y * (long long)depth;
    const float* b = weight + blockIdx.x * (long long)depth;
    float sum = 0.0f;
    for (int i = 0; i < depth; ++i) sum += __half2float(__hmul(__float2half(a[i]), __float2half(b[i])));
    out[blockIdx.y * (long long)n + blockIdx.x] = sum;
}
