// Attack: The block with the highest number adds up what all others have left, as if blocks ended in order.
// Caught: crashed mismatch
// Defence: races
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: parts: f32[ceil_div(B * N, 128)]
// launch: k<<<ceil_div(B * N, 128), 32>>>(x, parts, out, B * N)

__global__ void k(const float* x, float* parts, float* out, int n) {
    float sum = 0.0f;
    for (int j = 0; j < 4; ++j) {
        const int i = blockIdx.x * 128 + j * 32 + threadIdx.x;
        if (i < n) sum += x[i];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x != 0) return;
    parts[blockIdx.x] = sum;
    __threadfence();
    if (blockIdx.x != gridDim.x - 1) return;
    const volatile float* all = parts;
    float total = 0.0f;
    for (int block = 0; block < gridDim.x; ++block) total += all[block];
    *out = total / n;
}
