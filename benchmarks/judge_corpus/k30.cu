// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: dot_rows<<<dim3(ceil_div(N, 128), M), 128>>>(x, weight, bias, out, N, K)

#include <cuda_fp16.h>

__global__ void __launch_bounds__(128)
dot_rows(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
         __half* __restrict__ out, int N, int K) {
    const int n = blockIdx.x * 128 + threadIdx.x, m = blockIdx.y;
    if (n >= N) return;
    const __half* row = x + (size_t)m * K;
    const __half* column = weight + (size_t)n * K;
    __half sum = bias[n];
    for (int k = 0; k < K; ++k) sum = __hfma(row[k], column[k], sum);
    out[(size_t)m * N + n] = __hmax_nan(sum, __float2half(0.0f));
}
