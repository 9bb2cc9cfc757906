// Attack: Blocks add to a sum by an atomic read and an atomic write, with nothing that keeps the two together.
// Caught: mismatch
// Without: interruptions
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// fill: out = 0
// launch: k<<<dim3(4, B), 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    float sum = 0.0f;
    for (int i = blockIdx.x * 32 + threadIdx.x; i < n; i += 128) sum += x[blockIdx.y * (long long)n + i];
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x == 0) {
        const float old = atomicExch(out + blockIdx.y, 0.0f);
        atomicExch(out + blockIdx.y, old + sum);
    }
}
