// Attack: A cooperative launch of a block per 256 elements: all blocks must run at once, and of a few hundred thousand
//   elements they do not fit on any GPU.
// Caught: crashed
// Defence: launches
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: parts: f32[ceil_div(B * N, 256)]
// launch: k<<<ceil_div(B * N, 256), 32>>>(x, parts, out, B * N) cooperative=1

#include <cooperative_groups.h>

__global__ void k(const float* x, float* parts, float* out, int n) {
    float sum = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < min(n, blockIdx.x * 256 + 256); i += 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
    cooperative_groups::this_grid().sync();
    if (blockIdx.x != 0) return;
    sum = 0.0f;
    for (int i = threadIdx.x; i < gridDim.x; i += 32) sum += parts[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[0] = sum / n;
}
