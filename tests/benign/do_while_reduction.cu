// A reduction whose loops test at their ends, one of them left by a break.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float sums[128];
    float sum = 0.0f;
    int i = threadIdx.x;
    for (;;) {
        if (i >= n) break;
        sum += x[(long long)blockIdx.x * n + i];
        i += 128;
    }
    sums[threadIdx.x] = sum;
    int half = 64;
    do {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    } while (half >>= 1);
    if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}
