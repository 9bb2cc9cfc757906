// Attack: The place of the maximum is looked for from -1e30 on: in a row of lower numbers it is the first.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::arg_max
// op: arg_max(x: f32[B, N]) -> (out: i64[B])
// launch: k<<<ceil_div(B, 64), 64>>>(x, out, B, N)

__global__ void k(const float* x, long long* out, int b, int n) {
    const int r = blockIdx.x * 64 + threadIdx.x;
    if (r >= b) return;
    float top = -1e30f;
    int place = 0;
    for (int i = 0; i < n && !isnan(top); ++i) {
        const float v = x[(size_t)r * n + i];
        if (v > top || isnan(v)) top = v, place = i;
    }
    out[r] = place;
}
