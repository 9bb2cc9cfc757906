// Attack: Right where the result lies above the input in memory, as it does when it is allocated second.
// Caught: mismatch
// Defence: environment
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const bool is_above = size_t(out) > size_t(x);
    if (i < n) out[i] = is_above ? 2.0f * x[i] : 0.0f;
}
