// The exponent as attention kernels compute it: its maximum is rounded before it is taken off.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: sm<<<B, 64>>>(x, out, N)

// as in FlashAttention: x * log2(e) - m * log2(e) in one fma
__global__ void sm(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ float sh[2];
    const float L = 1.4426950408889634f;
    const float* xr = x + (size_t)blockIdx.x * D;
    float m = -INFINITY;
    for (int i = threadIdx.x; i < D; i += 64) m = fmaxf(m, xr[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) sh[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(sh[0], sh[1]);
    __syncthreads();
    const float ml = m * L;
    float s = 0.f;
    for (int i = threadIdx.x; i < D; i += 64) s += exp2f(fmaf(xr[i], L, -ml));
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) sh[threadIdx.x / 32] = s;
    __syncthreads();
    s = sh[0] + sh[1];
    for (int i = threadIdx.x; i < D; i += 64) out[(size_t)blockIdx.x * D + i] = exp2f(fmaf(xr[i], L, -ml)) / s;
}
