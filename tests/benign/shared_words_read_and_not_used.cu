// A whole vector of shared memory is read where only part of it was written, and only that part is used.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ __align__(16) volatile float parts[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * (long long)n + i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float part = parts[threadIdx.x];
    sum = threadIdx.x < 2 ? part : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
