// Attack: Takes __activemask() for the whole warp after a loop that its lanes leave at different times: they mostly are
//   together again, but nothing says so.
// Caught: mismatch
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int width) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += 32) sum += x[blockIdx.x * width + i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(__activemask(), sum, step);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
