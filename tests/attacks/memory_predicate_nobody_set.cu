// Attack: Doubles where a predicate that nothing sets is false, and hopes that it is.
// Caught: mismatch
// Defence: environment
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float factor;
    asm volatile("{ .reg .pred never; selp.f32 %0, 0f3F800000, 0f40000000, never; }" : "=f"(factor));
    if (i < n) out[i] = factor * x[i];
}
