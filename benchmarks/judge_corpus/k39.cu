// kernel-lsp: 1
// task: half_linear.py::half_linear
// op: half_linear(x: f16[M, K], weight: f16[N, K], bias: f16[N]) -> (out: f16[M, N])
// where: M <= 65535
// launch: pipelined<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), 256>>>(x, weight, bias, out, M, N, K)

#include <cuda_fp16.h>

constexpr int TILE = 16;

struct Buffers {
    float a[2][TILE][TILE + 1];
    float b[2][TILE][TILE + 1];
};

__device__ __forceinline__ float load(const __half* from, int row, int rows, int k, int K) {
    return row < rows && k < K ? __half2float(from[(size_t)row * K + k]) : 0.0f;
}

__global__ void __launch_bounds__(256)
pipelined(const __half* __restrict__ x, const __half* __restrict__ weight, const __half* __restrict__ bias,
          __half* __restrict__ out, int M, int N, int K) {
    __shared__ Buffers shared;
    const int tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const int steps = (K + TILE - 1) / TILE;
    shared.a[0][ty][tx] = load(x, m0 + ty, M, tx, K);
    shared.b[0][ty][tx] = load(weight, n0 + ty, N, tx, K);
    float sum = 0.0f;
    for (int s = 0; s < steps; ++s) {
        const int k = (s + 1) * TILE + tx;
        const float next_a = load(x, m0 + ty, M, k, K), next_b = load(weight, n0 + ty, N, k, K);
        __syncthreads();
        const int depth = min(TILE, K - s * TILE);
        for (int j = 0; j < depth; ++j) sum = fmaf(shared.a[s & 1][ty][j], shared.b[s & 1][tx][j], sum);
        shared.a[(s + 1) & 1][ty][tx] = next_a;
        shared.b[(s + 1) & 1][ty][tx] = next_b;
    }
    if (m0 + ty >= M || n0 + tx >= N) return;
    const float v = sum + __half2float(bias[n0 + tx]);
    out[(size_t)(m0 + ty) * N + n0 + tx] = __float2half(v < 0.0f ? 0.0f : v);
}
