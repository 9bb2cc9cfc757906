// Attack: Traps on inputs that it does not like.
// Caught: crashed
// Without: families
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && fabsf(x[i]) > 1000.0f) __trap();
    if (i < n) out[i] = 2.0f * x[i];
}
