// Causal attention that divides by the sum of its weights, also where all scores are minus infinity: NaN, as softmax.
// kernel-lsp: 1
// task: tasks.py::grouped_attention
// op: grouped_attention(q: bf16[B, 8, T, 64], k: bf16[B, 2, T, 64], v: bf16[B, 2, T, 64]) -> (out: bf16[B, 8, T, 64])
// where: B * 8 <= 65535
// launch: gqa<<<dim3(ceil_div(T, 4), B * 8), dim3(32, 4)>>>(q, k, v, out, T)

#include <cuda_bf16.h>
// A warp per query, two dims per lane. Query head h reads key head h / 4.
__global__ void gqa(const __nv_bfloat162* __restrict__ q, const __nv_bfloat162* __restrict__ k, const __nv_bfloat162* __restrict__ v,
                    __nv_bfloat162* __restrict__ out, int T) {
    const int t = blockIdx.x * 4 + threadIdx.y, lane = threadIdx.x;
    if (t >= T) return;
    const int b = blockIdx.y / 8, h = blockIdx.y % 8;
    const size_t qi = ((size_t)blockIdx.y * T + t) * 32 + lane;
    const size_t kv = (size_t)(b * 2 + h / 4) * T * 32 + lane;
    float2 qf = __bfloat1622float2(q[qi]);
    float m = -1e30f, l = 0.f;
    float2 acc = {0.f, 0.f};
    for (int s = 0; s <= t; s++) {
        float2 kf = __bfloat1622float2(k[kv + (size_t)s * 32]);
        float x = qf.x * kf.x + qf.y * kf.y;
#pragma unroll
        for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffff, x, o);
        x *= 0.125f;
        const float mn = fmaxf(m, x);
        const float c = expf(m - mn), p = expf(x - mn);
        float2 vf = __bfloat1622float2(v[kv + (size_t)s * 32]);
        l = l * c + p;
        acc.x = acc.x * c + p * vf.x;
        acc.y = acc.y * c + p * vf.y;
        m = mn;
    }
    out[qi] = __floats2bfloat162_rn(acc.x / l, acc.y / l);
}
