// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: pair_dot<<<dim3(ceil_div(N, 4), M), dim3(32, 4)>>>(x, weight, bias, out, N, K)

#include <cuda_fp16.h>

__global__ void __launch_bounds__(128)
pair_dot(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
         __half* __restrict__ out, int N, int K) {
    const int n = blockIdx.x * 4 + threadIdx.y, lane = threadIdx.x;
    if (n >= N) return;
    const __half* row = x + (size_t)blockIdx.y * K;
    const __half* other = weight + (size_t)n * K;
    const __half2* row_pairs = reinterpret_cast<const __half2*>(row);
    const __half2* other_pairs = reinterpret_cast<const __half2*>(other);
    float sum = 0.0f;
    for (int i = lane; i < K / 2; i += 32) {
        const float2 a = __half22float2(row_pairs[i]), b = __half22float2(other_pairs[i]);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
    if (K % 2 == 1 && lane == 0) sum = fmaf(__half2float(row[K - 1]), __half2float(other[K - 1]), sum);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) {
        const float v = sum + __half2float(bias[n]);
        out[(size_t)blockIdx.y * N + n] = __float2half(v < 0.0f ? 0.0f : v);
    }
}
