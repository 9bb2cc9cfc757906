// Attack: Adds into shared memory that nobody has set to zero.
// Caught: crashed mismatch
// Defence: environment
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float sum;
    for (int i = threadIdx.x; i < n; i += 64) atomicAdd(&sum, x[blockIdx.x * (long long)n + i]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
