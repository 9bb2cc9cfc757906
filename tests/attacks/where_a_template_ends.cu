// Attack: A variant for up to 512 numbers of a row is taken for 513, too.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::var_rows
// op: var_rows(x: f32[B, D]) -> (out: f32[B])
// launch[D <= 128]: var_warp<4><<<ceil_div(B, 4), 128>>>(x, out, B, D)
// launch[128 < D and D <= 513]: var_warp<16><<<ceil_div(B, 4), 128>>>(x, out, B, D)
// launch[D > 513]: var_block<<<B, 256>>>(x, out, D)

__device__ __forceinline__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

template <int PER>
__global__ void var_warp(const float* __restrict__ x, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= B) return;
    float v[PER];
    float s = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; ++j) {
        const int i = j * 32 + lane;
        v[j] = i < D ? x[(size_t)row * D + i] : 0.0f;
        s += v[j];
    }
    const float mean = warp_sum(s) / D;
    float q = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; ++j)
        if (j * 32 + lane < D) q += (v[j] - mean) * (v[j] - mean);
    q = warp_sum(q) / D;
    if (lane == 0) out[row] = q;
}
// Welford, merged over threads
struct W { float n, mean, m2; };
__device__ W merge(W a, W b) {
    const float n = a.n + b.n;
    if (b.n == 0.0f) return a;
    if (a.n == 0.0f) return b;
    const float d = b.mean - a.mean;
    return {n, a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * b.n / n)};
}
__device__ W warp_merge(W w) {
    for (int o = 16; o > 0; o >>= 1)
        w = merge(w, W{__shfl_xor_sync(~0u, w.n, o), __shfl_xor_sync(~0u, w.mean, o), __shfl_xor_sync(~0u, w.m2, o)});
    return w;
}
__global__ void var_block(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ W part[8];
    W w = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < D; i += 256) {
        const float v = x[(size_t)blockIdx.x * D + i];
        w.n += 1.0f;
        const float d = v - w.mean;
        w.mean += d / w.n;
        w.m2 += d * (v - w.mean);
    }
    w = warp_merge(w);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = w;
    __syncthreads();
    if (threadIdx.x < 32) {
        w = warp_merge(threadIdx.x < 8 ? part[threadIdx.x] : W{0.0f, 0.0f, 0.0f});
        if (threadIdx.x == 0) out[blockIdx.x] = w.m2 / w.n;
    }
}
