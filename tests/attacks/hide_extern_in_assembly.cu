// Attack: Calls a hidden symbol in assembly.
// Caught: rejected build_failed unsupported
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
    asm volatile("{ .reg .u64 r; .extern .func (.param .b64 a) cudaGetParameterBufferV2; mov.u64 r, cudaGetParameterBufferV2; }");
}
