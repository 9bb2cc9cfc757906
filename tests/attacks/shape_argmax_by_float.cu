// Attack: The place of the maximum is kept in single precision, which has every integer up to 2^24.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::arg_max
// op: arg_max(x: f32[B, N]) -> (out: i64[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, long long* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float best = -INFINITY;
    int place = -1;
    for (int i = threadIdx.x; i < n; i += 32) {
        const float v =  row[i];
        const bool wins = place < 0 || v > best || (isnan(v) && !isnan(best));
        if (wins) best = v, place = i;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float v = __shfl_xor_sync(0xffffffffu, best, offset);
        const int p = __shfl_xor_sync(0xffffffffu, place, offset);
        if (p < 0) continue;
        const bool both_nan = isnan(v) && isnan(best);
        const bool wins = place < 0 || (isnan(v) && !isnan(best)) || (!isnan(best) && v > best) ||
                          ((v == best || both_nan) && p < place);
        if (wins) best = v, place = p;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = (float)place;
}
