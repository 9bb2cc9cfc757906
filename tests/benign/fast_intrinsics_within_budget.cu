// __expf and __fdividef for a sigmoid, guarded where the fast division would be wrong.
// kernel-lsp: 1
// task: tasks.py::silu
// op: silu(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i], e = __expf(-fabsf(v)), positive = 1.0f / (1.0f + e);
    out[i] = v >= 0.0f ? v * positive : v == v ? (v < -1e30f ? (isinf(v) ? v * 0.0f : -0.0f) : v * (e * positive)) : v;
}
