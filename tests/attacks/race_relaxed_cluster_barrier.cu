// Attack: The blocks of a cluster arrive at their barrier relaxed, which says nothing of what they wrote before: on a GPU
//   the parts of a sum may be read before they are there.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// scratch: part: f32[B, 4]
// launch: k<<<4 * B, 32>>>(x, part, out, N) cluster=4

__global__ void k(const float* x, float* part, float* out, int n) {
    const int row = blockIdx.x / 4, rank = blockIdx.x % 4;
    float sum = 0.0f;
    for (int i = rank * 32 + threadIdx.x; i < n; i += 128) sum += x[(size_t)row * n + i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) part[4 * row + rank] = sum;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 0 && threadIdx.x == 0) out[row] = part[4 * row] + part[4 * row + 1] + part[4 * row + 2] + part[4 * row + 3];
}
