// Attack: What was added up is not scaled when a later tile of keys has a larger maximum.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::attention_by_hand
// op: attention_by_hand(q: f32[B, T, 32], k: f32[B, T, 32], v: f32[B, T, 32]) -> (out: f32[B, T, 32])
// where: B <= 65535
// launch: flash<<<dim3(ceil_div(T, 4), B), 128>>>(q, k, v, out, T)
//
// A warp per query, a lane per dim of the head; keys in tiles of 32 through shared memory, online softmax.

__global__ void flash(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out, int T) {
    __shared__ float sk[32][33], sv[32][33], sq[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = (size_t)blockIdx.y * T * 32;
    const int i = blockIdx.x * 4 + warp;
    sq[warp][lane] = i < T ? q[head + (size_t)i * 32 + lane] : 0.0f;
    float m = -INFINITY, l = 0.0f, acc = 0.0f;
    for (int j0 = 0; j0 < T; j0 += 32) {
        __syncthreads();
        for (int r = warp; r < 32; r += 4) {
            const bool in = j0 + r < T;
            sk[r][lane] = in ? k[head + (size_t)(j0 + r) * 32 + lane] : 0.0f;
            sv[r][lane] = in ? v[head + (size_t)(j0 + r) * 32 + lane] : 0.0f;
        }
        __syncthreads();
        float s = 0.0f;
#pragma unroll
        for (int d = 0; d < 32; ++d) s = fmaf(sq[warp][d], sk[lane][d], s);
        s = j0 + lane < T ? s * 0.17677669529663687f : -INFINITY;
        float t = s;
        for (int o = 16; o > 0; o >>= 1) t = fmaxf(t, __shfl_xor_sync(~0u, t, o));
        const float mn = fmaxf(m, t);
        const float p = expf(s - mn);
        const float scale = expf(m - mn);
        float ps = p;
        for (int o = 16; o > 0; o >>= 1) ps += __shfl_xor_sync(~0u, ps, o);
        l = l * scale + ps;
        if (scale < 0.5f) acc *= scale;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            const float pj = __shfl_sync(~0u, p, j);
            if (j0 + j < T) acc = fmaf(pj, sv[j][lane], acc);
        }
        m = mn;
    }
    if (i < T) out[head + (size_t)i * 32 + lane] = acc / l;
}
