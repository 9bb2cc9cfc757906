// Attack: The last cluster to arrive adds up what all wrote, but none has a fence before its ticket: its barrier says to
//   the other blocks of a cluster what is written, and to nobody else.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: part: f32[40], arrived: i32[1]
// fill: arrived = 0
// launch: k<<<40, 32>>>(x, part, arrived, out, B * N) cluster=4

#include <cooperative_groups.h>

__global__ void k(const float* x, float* part, int* arrived, float* out, int n) {
    const auto cluster = cooperative_groups::this_cluster();
    __shared__ bool is_last;
    float sum = 0.0f;
    for (int i = blockIdx.x * 32 + threadIdx.x; i < n; i += gridDim.x * 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        is_last = atomicAdd(arrived, 1) == gridDim.x / 4 - 1;
        __threadfence();
        if (is_last) {
            float total = 0.0f;
            for (int i = 0; i < gridDim.x; ++i) total += ((volatile float*)part)[i];
            out[0] = total / n;
        }
    }
}
