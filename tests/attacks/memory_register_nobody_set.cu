// Attack: Adds a register that nothing sets, and hopes that it holds zero.
// Caught: mismatch
// Defence: environment
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float rest;
    asm volatile("{ .reg .f32 never; mov.f32 %0, never; }" : "=f"(rest));
    if (i < n) out[i] = 2.0f * x[i] + rest;
}
