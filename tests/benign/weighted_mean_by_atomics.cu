// Few weights are added up one after the other, whose roundings all go one way.
// kernel-lsp: 1
// task: tasks.py::ce_weight
// op: ce_weight(x: f32[N, C], t: i64[N], w: f32[C]) -> (out: f32[])
// scratch: acc: f32[2]
// fill: acc = 0
// launch: row<<<ceil_div(N, 4), dim3(32, 4)>>>(x, t, w, acc, N, C)
// launch: fin<<<1, 1>>>(acc, out)

__global__ void row(const float* __restrict__ x, const long long* __restrict__ t, const float* __restrict__ w, float* __restrict__ acc, int N, int C) {
    const int r = blockIdx.x * 4 + threadIdx.y;
    if (r >= N) return;
    const float* p = x + (size_t)r * C;
    float m = -INFINITY;
    for (int i = threadIdx.x; i < C; i += 32) m = fmaxf(m, p[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    float s = 0.f;
    for (int i = threadIdx.x; i < C; i += 32) s += __expf(p[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x == 0) {
        const int c = (int)t[r];
        const float wt = fmaf(w[c], w[c], 0.1f);
        atomicAdd(&acc[0], wt * (logf(s) + m - p[c]));
        atomicAdd(&acc[1], wt);
    }
}
__global__ void fin(const float* __restrict__ acc, float* __restrict__ out) { out[0] = acc[0] / acc[1]; }
