// Attack: A row is kept in shared memory, and the contract lets in rows that are too long for it: from 58,113 columns on
//   no GPU launches the kernel.
// Caught: build_failed
// Defence: launches
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// where: N <= 60000
// launch: k<<<B, 32, 4 * N>>>(x, out, N)

extern __shared__ float row[];

__global__ void k(const float* x, float* out, int n) {
    for (int i = threadIdx.x; i < n; i += 32) row[i] = x[(size_t)blockIdx.x * n + i];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += row[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
