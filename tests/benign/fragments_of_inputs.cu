// Fragments loaded straight from the inputs, which wmma wants at multiples of 32 bytes.
// kernel-lsp: 1
// task: tasks.py::matmul_of_16s
// op: matmul_of_16s(x: f16[M, K], y: f16[K, N]) -> (c: f16[M, N])
// where: M % 16 == 0 and N % 16 == 0 and K % 16 == 0
// launch: mm<<<dim3(N // 16, ceil_div(M // 16, 4)), dim3(32, 4)>>>(x, y, c, M, N, K)
// where: M <= 4000000

#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

__global__ void mm(const half* __restrict__ a, const half* __restrict__ b, half* __restrict__ c, int M, int N, int K) {
    __shared__ __align__(32) float stage[4][16 * 16];
    const int tm = blockIdx.y * 4 + threadIdx.y, tn = blockIdx.x;
    if (tm * 16 >= M) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(fa, a + (size_t)tm * 16 * K + k, K);
        wmma::load_matrix_sync(fb, b + (size_t)k * N + tn * 16, N);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    wmma::store_matrix_sync(stage[threadIdx.y], acc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32)
        c[(size_t)(tm * 16 + i / 16) * N + tn * 16 + i % 16] = __float2half(stage[threadIdx.y][i]);
}
