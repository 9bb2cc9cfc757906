// Attack: Blocks of 4,096 elements add to one sum without an atomic operation: a small case has one of them.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// fill: out = 0
// launch: add<<<ceil_div(B * N, 4096), 64>>>(x, out, B * N)

__global__ void add(const float* x, float* out, int n) {
    __shared__ float sums[64];
    float sum = 0.0f;
    for (int i = blockIdx.x * 4096 + threadIdx.x; i < min(n, (blockIdx.x + 1) * 4096); i += 64) sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 64; ++i) total += sums[i];
        *out += total / n;
    }
}
