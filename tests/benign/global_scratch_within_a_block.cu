// The threads of a block pass values to each other through device memory, with a barrier between, and write what others
// of the block wrote with the same value.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// scratch: part: f32[B, 64], count: i32[1]
// launch: k<<<B, 64>>>(x, part, count, out, N)

__global__ void k(const float* x, float* part, int* count, float* out, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * (long long)n + i];
    float* own = part + blockIdx.x * 64LL;
    own[threadIdx.x] = sum;
    *count = n;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) own[threadIdx.x] += own[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = own[0];
}
