// Attack: Goes on in steps of the grid, but no more than 64 times: beyond 16,777,216 elements the rest is never written.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<min(ceil_div(B * N, 256), 1024), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int step = 0; step < 64 && i < n; step++, i += gridDim.x * blockDim.x) out[i] = 2.0f * x[i];
}
