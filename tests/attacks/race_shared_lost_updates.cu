// Attack: Threads add to eight sums in shared memory without atomic operations; threads that run one by one lose nothing.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float sums[8];
    if (threadIdx.x < 8) sums[threadIdx.x] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[blockIdx.x * (long long)n + i];
    sums[threadIdx.x % 8] += sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 8; ++i) total += sums[i];
        out[blockIdx.x] = total;
    }
}
