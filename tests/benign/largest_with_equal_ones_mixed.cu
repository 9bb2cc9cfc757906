// The largest of 16 bits, of which many are equal, in an order of its own; their places in 32 bits.
// kernel-lsp: 1
// task: tasks.py::four_largest
// op: four_largest(x: f16[B, D]) -> (v: f16[B, 4], i: i32[B, 4])
// where: D >= 4
// where: D <= 512
// launch: k<<<B, 128>>>(x, v, i, D)
#include <cuda_fp16.h>
__device__ bool before(float a, int ia, float b, int ib) {
    bool na = a != a, nb = b != b;
    if (na != nb) return na;
    if (!na && a != b) return a > b;
    return (ia ^ 0x2d) > (ib ^ 0x2d);
}

__global__ void k(const half* __restrict__ x, half* __restrict__ v, int* __restrict__ idx, int D) {
    for (int j = threadIdx.x; j < D; j += 128) {
        float a = __half2float(x[(size_t)blockIdx.x * D + j]);
        int rank = 0; bool other_nan = false;
        for (int m = 0; m < D; ++m) { float b = __half2float(x[(size_t)blockIdx.x * D + m]); rank += m != j && before(b, m, a, j); other_nan |= b != b; }
        if (rank < 4) { v[blockIdx.x * 4 + rank] = x[(size_t)blockIdx.x * D + j]; idx[blockIdx.x * 4 + rank] = j; }
    }
}
