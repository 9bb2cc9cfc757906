// Attack: Neighbours of a warp exchange their sums through shared memory with nothing between: lanes that run in step are
//   not promised.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += x[blockIdx.x * (long long)n + i];
    for (int offset = 16; offset > 0; offset /= 2) {
        part[threadIdx.x] = sum;
        sum += part[threadIdx.x ^ offset];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
