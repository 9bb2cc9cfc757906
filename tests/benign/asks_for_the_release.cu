// Asks for the compiler to include what only nvcc needs, and for the architecture.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 32>>>(x, out, N)
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
#ifdef __CUDACC__
#define FULL_WARP 0xffffffffu
#endif

__global__ void k(const float* x, float* out, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += x[blockIdx.x * (long long)n + i];
    for (int lane = 16; lane > 0; lane /= 2) {
#if __CUDA_ARCH__ < 700
        sum += __shfl_xor(sum, lane);
#else
        sum += __shfl_xor_sync(FULL_WARP, sum, lane);
#endif
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
