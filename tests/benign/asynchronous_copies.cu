// Asynchronous copies into shared memory.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cuda_pipeline.h>

__global__ void k(const float* x, float* out, int n) {
    __shared__ float stage[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) __pipeline_memcpy_async(&stage[threadIdx.x], x + i, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    if (i < n) out[i] = 2.0f * stage[threadIdx.x];
}
