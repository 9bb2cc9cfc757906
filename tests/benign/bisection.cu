// The largest of a row is looked for among the bits of a float: halves until one number is left.
// kernel-lsp: 1
// task: tasks.py::largest
// op: largest(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__device__ unsigned ordered(float v) {
    const unsigned bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ float of_order(unsigned o) { return __uint_as_float(o >> 31 ? o ^ 0x80000000u : ~o); }

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + (long long)blockIdx.x * n;
    int has_nan = 0;
    for (int i = threadIdx.x; i < n; i += 64) has_nan |= isnan(row[i]);
    has_nan = __syncthreads_or(has_nan);
    unsigned low = 0u, high = 0xffffffffu;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        int is_above = 0;
        for (int i = threadIdx.x; i < n; i += 64) is_above |= ordered(row[i]) > middle;
        if (__syncthreads_or(is_above)) low = middle + 1;
        else high = middle;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = has_nan ? __int_as_float(0x7fffffff) : of_order(low);
}
