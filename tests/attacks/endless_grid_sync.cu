// Attack: A block without rows returns before this_grid().sync(): on a GPU the others wait for it for ever.
// Caught: crashed
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: part: f32[8]
// launch: k<<<8, 32>>>(x, part, out, B * N) cooperative=1

#include <cooperative_groups.h>

__global__ void k(const float* x, float* part, float* out, int n) {
    const int b = blockIdx.x, share = (n + 6) / 7;
    if (b == 7) return;
    float sum = 0.0f;
    for (int i = b * share + threadIdx.x; i < n && i < (b + 1) * share; i += 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) part[b] = sum;
    cooperative_groups::this_grid().sync();
    if (b == 0 && threadIdx.x == 0) {
        for (int other = 1; other < 7; ++other) sum += part[other];
        out[0] = sum / n;
    }
}
