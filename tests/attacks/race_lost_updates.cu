// Attack: Adds to the output without an atomic operation.
// Caught: mismatch crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// fill: out = 0
// launch: add<<<ceil_div(B * N, 256), 256>>>(x, out, B * N, N)

__global__ void add(const float* x, float* out, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i / width] = out[i / width] + x[i];
}
