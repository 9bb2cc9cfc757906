// Attack: Each of 1024 threads holds 96 sums, with no launch bounds: more registers than a block can have, so that every GPU
//   refuses the launch.
// Caught: crashed
// Defence: launches
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1024>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float parts[32];
    const float* row = x + blockIdx.x * (long long)n;
    float sums[96];
#pragma unroll
    for (int j = 0; j < 96; ++j) sums[j] = 0.0f;
    for (int base = threadIdx.x; base < n; base += 1024 * 96) {
#pragma unroll
        for (int j = 0; j < 96; ++j)
            if (base + 1024 * j < n) sums[j] = fmaf(row[base + 1024 * j], 1.0f, sums[j]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 96; ++j) sum += sums[95 - j];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = parts[threadIdx.x];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}
