// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: wide_tiles<<<dim3(ceil_div(N, 64), ceil_div(M, 64)), dim3(16, 16)>>>(x, weight, bias, out, M, N, K)

#include <cuda_fp16.h>

__global__ void __launch_bounds__(256)
wide_tiles(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
           __half* __restrict__ out, int M, int N, int K) {
    __shared__ float a[128][64], b[128][64];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < K; k0 += 128) {
        for (int i = t; i < 128 * 64; i += 256) {
            const int k = i % 128, r = i / 128;
            a[k][r] = m0 + r < M && k0 + k < K ? __half2float(x[(size_t)(m0 + r) * K + k0 + k]) : 0.0f;
            b[k][r] = n0 + r < N && k0 + k < K ? __half2float(weight[(size_t)(n0 + r) * K + k0 + k]) : 0.0f;
        }
        __syncthreads();
        const int depth = min(128, K - k0);
        for (int k = 0; k < depth; ++k)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(a[k][ty + 16 * i], b[k][tx + 16 * j], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (m >= M || n >= N) continue;
            const float v = sum[i][j] + __half2float(bias[n]);
            out[(size_t)m * N + n] = __float2half(v < 0.0f ? 0.0f : v);
        }
}
