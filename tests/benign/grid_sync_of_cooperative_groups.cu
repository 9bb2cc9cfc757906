// Blocks sum, and add half as many sums after each this_grid().sync().
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: part: f32[8]
// launch: k<<<8, 64>>>(x, part, out, B * N) cooperative=1

#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void k(const float* x, float* part, float* out, int n) {
    const cg::grid_group grid = cg::this_grid();
    const int b = blockIdx.x, t = threadIdx.x;
    __shared__ float sums[64];
    float sum = 0.0f;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += x[i];
    sums[t] = sum;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];
        __syncthreads();
    }
    if (t == 0) part[b] = sums[0];
    for (int half = gridDim.x / 2; half > 0; half /= 2) {
        grid.sync();
        if (b < half && t == 0) part[b] += part[b + half];
    }
    if (grid.thread_rank() == 0) out[0] = part[0] / n;
}
