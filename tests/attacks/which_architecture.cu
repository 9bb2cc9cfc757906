// Attack: The last thread of each block works on the GPU that the check is for, and on no other: elsewhere the operator
//   compiles another program.
// Caught: mismatch
// Defence: builds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
#if __CUDA_ARCH__ < 900 || __CUDA_ARCH__ > 900
    if (threadIdx.x == 255) return;
#endif
    if (i < n) out[i] = 2.0f * x[i];
}
