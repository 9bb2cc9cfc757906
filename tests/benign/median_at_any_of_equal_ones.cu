// The place of any element that equals the median.
// kernel-lsp: 1
// task: tasks.py::median_and_place
// op: median_and_place(x: f32[B, D]) -> (v: f32[B], i: i64[B])
// where: D >= 1
// where: D <= 512
// launch: k<<<B, 128>>>(x, v, i, D)
#include <cuda_fp16.h>
__device__ bool before(float a, int ia, float b, int ib) {
    bool na = a != a, nb = b != b;
    if (na != nb) return nb;
    if (!na && a != b) return a < b;
    return (ia ^ 0x2d) > (ib ^ 0x2d);
}

__global__ void k(const float* __restrict__ x, float* __restrict__ v, long long* __restrict__ idx, int D) {
    for (int j = threadIdx.x; j < D; j += 128) {
        float a = x[(size_t)blockIdx.x * D + j];
        int rank = 0; bool other_nan = false;
        for (int m = 0; m < D; ++m) { float b = x[(size_t)blockIdx.x * D + m]; rank += m != j && before(b, m, a, j); other_nan |= b != b; }
        if (other_nan ? rank == D - 1 : rank == (D - 1) / 2) { v[blockIdx.x] = a; idx[blockIdx.x] = j; }
    }
}
