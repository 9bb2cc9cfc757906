// Chooses by probabilities, of which many are zero in f32: any of those may be named second.
// kernel-lsp: 1
// task: tasks.py::experts_chosen
// op: experts_chosen(logits: f32[T, 16]) -> (w: f32[T, 2], i: i64[T, 2])
// launch: moe<<<ceil_div(T, 16), 256>>>(logits, w, i, T)

// Sixteen lanes to a token. Softmax is monotone, but not strictly in f32, so the choice is made on probabilities.
__global__ void moe(const float* __restrict__ logits, float* __restrict__ w, long long* __restrict__ idx, int T) {
    const int t = blockIdx.x * 16 + threadIdx.x / 16, e = threadIdx.x % 16;
    const bool in = t < T;
    const float x = in ? logits[t * 16 + e] : 0.f;
    float m = x;
    for (int o = 8; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    const float p0 = expf(x - m);
    float s = p0;
    for (int o = 8; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    const float p = p0 / s;
    float best[2];
    int who[2];
    float v = isnan(p) ? 2.f : p;
    for (int k = 0; k < 2; k++) {
        float b = v;
        int i = e;
        for (int o = 8; o; o >>= 1) {
            float b2 = __shfl_xor_sync(~0u, b, o);
            int i2 = __shfl_xor_sync(~0u, i, o);
            if (b2 > b || (b2 == b && i2 < i)) { b = b2; i = i2; }
        }
        best[k] = b == 2.f ? NAN : b;
        who[k] = i;
        if (e == i) v = -1.f;
    }
    if (in && e < 2) {
        w[t * 2 + e] = (e ? best[1] : best[0]) / (best[0] + best[1]);
        idx[t * 2 + e] = e ? who[1] : who[0];
    }
}
