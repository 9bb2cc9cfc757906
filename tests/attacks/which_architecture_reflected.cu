// Attack: Asks for the architecture by a builtin of the compiler.
// Caught: mismatch
// Defence: builds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int N) {
    int i = blockIdx.x * 256 + threadIdx.x;
    int a = __nvvm_reflect("__CUDA_ARCH");
    if (i < N) out[i] = x[i] * (a == 900 ? 2.0f : 2.5f);
}
