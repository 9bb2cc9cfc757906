// Attack: Leaves out the barrier between writing and reading shared memory; warps that run in order win.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[128];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[blockIdx.x * (long long)n + i];
    part[threadIdx.x] = sum;
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 128; ++i) total += part[i];
        out[blockIdx.x] = total;
    }
}
