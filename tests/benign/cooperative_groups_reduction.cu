// Cooperative groups: a tile of sixteen threads per row.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 8), 128>>>(x, out, B, N)

#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void k(const float* x, float* out, int rows, int n) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    const int row = blockIdx.x * 8 + threadIdx.x / 16;
    float sum = 0.0f;
    if (row < rows)
        for (int i = tile.thread_rank(); i < n; i += 16) sum += x[row * (long long)n + i];
    for (int offset = 8; offset > 0; offset /= 2) sum += tile.shfl_down(sum, offset);
    if (row < rows && tile.thread_rank() == 0) out[row] = sum;
}
