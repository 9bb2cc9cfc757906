// Attack: The kernel that the plan names is renamed by the preprocessor to one that does nothing.
// Caught: build_failed mismatch rejected
// Defence: reference
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#define k honest
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
#undef k
__global__ void cheat(const float* x, float* out, int n) {}
#define k cheat
