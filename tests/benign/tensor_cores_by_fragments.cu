// Tensor cores through wmma: tiles in shared memory with zeros past the ends, sums in single precision.
// kernel-lsp: 1
// task: tasks.py::linear_bf16
// op: linear_bf16(x: bf16[B, K], weight: bf16[N, K]) -> (out: bf16[B, N])
// launch: k<<<dim3(ceil_div(N, 32), ceil_div(B, 32)), 128>>>(x, weight, out, B, N, K)

#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 32, DEPTH = 32;
constexpr int LINE = DEPTH + 8;      // elements from row to row: 16 bytes more than a tile has, against bank conflicts
constexpr int SUM_LINE = TILE + 4;

__global__ void __launch_bounds__(128)
k(const __nv_bfloat16* __restrict__ x,       // (rows, depth)
  const __nv_bfloat16* __restrict__ weight,  // (n, depth)
  __nv_bfloat16* __restrict__ out,           // (rows, n)
  int rows, int n, int depth) {
    __shared__ __align__(32) __nv_bfloat16 a[TILE][LINE], b[TILE][LINE];
    __shared__ __align__(32) float sums[TILE][SUM_LINE];
    const int warp = threadIdx.x / 32, top = warp / 2 * 16, left = warp % 2 * 16;
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const __nv_bfloat16 zero = __float2bfloat16(0.0f);

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int base = 0; base < depth; base += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += blockDim.x) {
            const int line = i / DEPTH, j = base + i % DEPTH;
            const int row = first_row + line, column = first_column + line;
            a[line][i % DEPTH] = row < rows && j < depth ? x[(long long)row * depth + j] : zero;
            b[line][i % DEPTH] = column < n && j < depth ? weight[(long long)column * depth + j] : zero;
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < DEPTH; step += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left_factor;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> right_factor;
            wmma::load_matrix_sync(left_factor, &a[top][step], LINE);
            wmma::load_matrix_sync(right_factor, &b[left][step], LINE);
            wmma::mma_sync(sum, left_factor, right_factor, sum);
        }
        __syncthreads();
    }
    wmma::store_matrix_sync(&sums[top][left], sum, SUM_LINE, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
        const int row = first_row + i / TILE, column = first_column + i % TILE;
        if (row < rows && column < n) out[(long long)row * n + column] = __float2bfloat16(sums[i / TILE][i % TILE]);
    }
}
