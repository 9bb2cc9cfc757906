// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: tiled<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(x, weight, bias, out, M, N, K)

#include <cuda_fp16.h>

__global__ void __launch_bounds__(256)
tiled(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
      __half* __restrict__ out, int M, int N, int K) {
    __shared__ float a[16][17], b[16][17];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int m = blockIdx.y * 16 + ty, n = blockIdx.x * 16 + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += 16) {
        const int k = k0 + tx, w = blockIdx.x * 16 + ty;
        a[ty][tx] = m < M && k < K ? __half2float(x[(size_t)m * K + k]) : 0.0f;
        b[ty][tx] = w < N && k < K ? __half2float(weight[(size_t)w * K + k]) : 0.0f;
        __syncthreads();
        const int depth = min(16, K - k0);
        for (int j = 0; j < depth; ++j) sum = fmaf(a[ty][j], b[tx][j], sum);
        __syncthreads();
    }
    if (m >= M || n >= N) return;
    const float v = sum + __half2float(bias[n]);
    out[(size_t)m * N + n] = __float2half(v < 0.0f ? 0.0f : v);
}
