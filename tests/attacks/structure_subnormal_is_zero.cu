// Attack: Subnormal numbers are taken for zero, as `-use_fast_math` does and PyTorch does not.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float doubled;
    if (i >= n) return;
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(doubled) : "f"(x[i]), "f"(2.0f));
    out[i] = doubled;
}
