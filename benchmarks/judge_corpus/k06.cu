// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// where: K % 2 == 0
// launch: pair_rows<<<dim3(N, ceil_div(M, 4)), dim3(32, 4)>>>(x, weight, bias, out, M, N, K // 2)

#include <cuda_fp16.h>

__global__ void __launch_bounds__(128)
pair_rows(const __half2* __restrict__ x, const __half2* __restrict__ weight, const __half* __restrict__ bias,
          __half* __restrict__ out, int M, int N, int pairs) {
    const int m = blockIdx.y * 4 + threadIdx.y, n = blockIdx.x;
    if (m >= M) return;
    float even = 0.0f, odd = 0.0f;
    for (int i = threadIdx.x; i < pairs; i += 32) {
        const float2 a = __half22float2(x[(size_t)m * pairs + i]);
        const float2 b = __half22float2(weight[(size_t)n * pairs + i]);
        even = fmaf(a.x, b.x, even);
        odd = fmaf(a.y, b.y, odd);
    }
    float sum = even + odd;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x != 0) return;
    const float v = sum + __half2float(bias[n]);
    out[(size_t)m * N + n] = __float2half(v < 0.0f ? 0.0f : v);
}
