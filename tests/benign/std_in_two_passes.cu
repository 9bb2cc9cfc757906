// The squares of subnormal numbers are zero in f32.
// kernel-lsp: 1
// task: tasks.py::stdrow
// op: stdrow(x: f32[B, D]) -> (out: f32[B])
// where: D >= 2
// launch: sd<<<B, 32>>>(x, out, D)

__global__ void sd(const float* __restrict__ x, float* __restrict__ out, int D) {
    const float* p = x + (size_t)blockIdx.x * D;
    float s = 0.f;
    for (int i = threadIdx.x; i < D; i += 32) s += p[i];
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    const float m = s / D;
    float q = 0.f;
    for (int i = threadIdx.x; i < D; i += 32) { const float d = p[i] - m; q = fmaf(d, d, q); }
    for (int o = 16; o; o >>= 1) q += __shfl_xor_sync(~0u, q, o);
    if (threadIdx.x == 0) out[blockIdx.x] = sqrtf(q / (D - 1));
}
