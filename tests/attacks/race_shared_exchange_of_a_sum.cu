// Attack: Threads of a block add to a sum in shared memory by an atomic read and an atomic write.
// Caught: mismatch
// Without: interruptions
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * (long long)n + i];
    const float old = atomicAdd(&total, 0.0f);
    atomicExch(&total, old + sum);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}
