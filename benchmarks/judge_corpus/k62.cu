// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: gemm<16><<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(x, weight, bias, out, M, N, K)

#include <cuda_fp16.h>

template <int TILE, int DEPTH>
__global__ void __launch_bounds__(TILE * TILE)
gemm(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
     __half* __restrict__ out, int M, int N, int K) {
    __shared__ float a[TILE][DEPTH + 1], b[TILE][DEPTH + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        for (int i = ty * TILE + tx; i < TILE * DEPTH; i += TILE * TILE) {
            const int r = i / DEPTH, k = k0 + i % DEPTH;
            a[r][i % DEPTH] = m0 + r < M && k < K ? __half2float(x[(size_t)(m0 + r) * K + k]) : 0.0f;
            b[r][i % DEPTH] = n0 + r < N && k < K ? __half2float(weight[(size_t)(n0 + r) * K + k]) : 0.0f;
        }
        __syncthreads();
        const int depth = min(DEPTH, K - k0);
        for (int k = 0; k < depth; ++k) sum = fmaf(a[ty][k], b[tx][k], sum);
        __syncthreads();
    }
    if (m0 + ty >= M || n0 + tx >= N) return;
    const float v = sum + __half2float(bias[n0 + tx]);
    out[(size_t)(m0 + ty) * N + n0 + tx] = __float2half(v < 0.0f ? 0.0f : v);
}
