// Attack: A comment in assembly says ".section": a reader that takes it for the debug information at the end stops
//   there.
// Caught: rejected
// Without: audit state
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ int counter;

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    asm volatile("// .section .debug_str {");
    if (counter > 100) return;
    if (i < n) out[i] = 2.0f * x[i];
    if (i == 0) counter = counter + 1;
}
