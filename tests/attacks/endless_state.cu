// Attack: Never ends, by a loop whose state changes for ever and is of no use: an assembler may drop it.
// Caught: rejected
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile int s = 1;
    while (s) s = s * 3 | 1;
    if (i < n) out[i] = 2.0f * x[i];
}
