// A row per cluster: each block keeps a quarter in its shared memory, and reads what the others found out of theirs.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<4 * B, 32>>>(x, out, N) cluster=4

#include <cooperative_groups.h>

__device__ float larger(float a, float b) { return a > b || isnan(a) ? a : b; }

__global__ void k(const float* x, float* out, int n) {
    const auto cluster = cooperative_groups::this_cluster();
    __shared__ float largest_of, sum_of;
    const float* row = x + (size_t)(blockIdx.x / 4) * n;
    const int first = cluster.block_rank() * 32 + threadIdx.x;
    float largest = -INFINITY;
    for (int i = first; i < n; i += 128) largest = larger(row[i], largest);
    for (int offset = 16; offset > 0; offset /= 2) largest = larger(__shfl_xor_sync(~0u, largest, offset), largest);
    if (threadIdx.x == 0) largest_of = largest;
    cluster.sync();
    for (int rank = 0; rank < 4; ++rank) largest = larger(*cluster.map_shared_rank(&largest_of, rank), largest);
    float sum = 0.0f;
    for (int i = first; i < n; i += 128) sum += expf(row[i] - largest);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x == 0) sum_of = sum;
    cluster.sync();
    sum = 0.0f;
    for (int rank = 0; rank < 4; ++rank) sum += *cluster.map_shared_rank(&sum_of, rank);
    for (int i = first; i < n; i += 128) out[(size_t)(blockIdx.x / 4) * n + i] = expf(row[i] - largest) / sum;
    cluster.sync();
}
