// Attack: Where a row has a NaN the place of its maximum is none at all.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::arg_max
// op: arg_max(x: f32[B, N]) -> (out: i64[B])
// launch: k<<<ceil_div(B, 64), 64>>>(x, out, B, N)

__global__ void k(const float* x, long long* out, int b, int n) {
    const int r = blockIdx.x * 64 + threadIdx.x;
    if (r >= b) return;
    float top = -INFINITY;
    long long place = 0;
    bool has_nan = false;
    for (int i = 0; i < n; ++i) {
        const float v = x[(size_t)r * n + i];
        has_nan |= isnan(v);
        if (v > top) top = v, place = i;
    }
    out[r] = has_nan ? 1ll << 40 : place;
}
