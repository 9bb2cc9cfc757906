// Attack: Waits for its own copies and multiplies without waiting for those of the other threads.
// Caught: mismatch crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::matmul_f16
// op: matmul_f16(x: f16[B, K], y: f16[K, N]) -> (out: f16[B, N])
// where: K % 8 == 0
// where: N % 8 == 0
// launch: k<<<dim3(ceil_div(N, 64), ceil_div(B, 64)), 128>>>(x, y, out, B, N, K)

#include <cuda_fp16.h>

constexpr int TILE = 64, DEPTH = 32;
constexpr int A_LINE = DEPTH + 8, B_LINE = TILE + 8;  // 16 bytes more than a tile has, against bank conflicts

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// 16 bytes, or zeros where there are none to copy.
__device__ __forceinline__ void copy(half* to, const half* from, bool is_inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(is_inside ? 16 : 0));
}

__device__ __forceinline__ void stage(half (*a)[A_LINE], half (*b)[B_LINE], const half* x, const half* y, int row,
                                      int column, int base, int rows, int n, int depth) {
    for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += 128) {
        const int line = i / (DEPTH / 8), j = i % (DEPTH / 8) * 8;
        const bool is_inside = row + line < rows && base + j < depth;
        copy(&a[line][j], is_inside ? x + (long long)(row + line) * depth + base + j : x, is_inside);
    }
    for (int i = threadIdx.x; i < DEPTH * TILE / 8; i += 128) {
        const int line = i / (TILE / 8), j = i % (TILE / 8) * 8;
        const bool is_inside = base + line < depth && column + j < n;
        copy(&b[line][j], is_inside ? y + (long long)(base + line) * n + column + j : y, is_inside);
    }
    asm volatile("cp.async.commit_group;");
}

__global__ void __launch_bounds__(128)
k(const half* __restrict__ x,  // (rows, depth)
  const half* __restrict__ y,  // (depth, n)
  half* __restrict__ out,      // (rows, n)
  int rows, int n, int depth) {
    __shared__ __align__(16) half a[2][TILE][A_LINE], b[2][DEPTH][B_LINE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, top = warp * 16;
    float sum[TILE / 8][4] = {};

    const int n_steps = (depth + DEPTH - 1) / DEPTH;
    stage(a[0], b[0], x, y, row, column, 0, rows, n, depth);
    for (int step = 0; step < n_steps; ++step) {
        if (step + 1 < n_steps)
            stage(a[(step + 1) % 2], b[(step + 1) % 2], x, y, row, column, (step + 1) * DEPTH, rows, n, depth);
        else
            asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        const half(*left)[A_LINE] = a[step % 2];
        const half(*right)[B_LINE] = b[step % 2];
#pragma unroll
        for (int k0 = 0; k0 < DEPTH; k0 += 16) {
            unsigned f[4], g[2];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                         : "r"(shared_address(&left[top + lane % 16][k0 + lane / 16 * 8])));
#pragma unroll
            for (int j = 0; j < TILE / 8; ++j) {
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                             : "=r"(g[0]), "=r"(g[1])
                             : "r"(shared_address(&right[k0 + lane % 16][8 * j])));
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                    "{%0, %1, %2, %3};"
                    : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
                    : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
        const int first = column + 8 * j + lane % 4 * 2, upper = row + top + lane / 4;
        if (first >= n) continue;
        if (upper < rows) *(half2*)&out[(long long)upper * n + first] = __floats2half2_rn(sum[j][0], sum[j][1]);
        if (upper + 8 < rows)
            *(half2*)&out[(long long)(upper + 8) * n + first] = __floats2half2_rn(sum[j][2], sum[j][3]);
    }
}
