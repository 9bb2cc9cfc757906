// The maximum of floats by integer atomics on bits that order as the numbers do.
// kernel-lsp: 1
// task: tasks.py::largest
// op: largest(x: f32[B, N]) -> (out: f32[B])
// scratch: bits: i32[B]
// fill: bits = -2147483648
// launch: collect<<<dim3(ceil_div(N, 64), B), 64>>>(x, bits, N)
// launch: k<<<ceil_div(B, 64), 64>>>(x, bits, out, B, N)

__device__ int ordered(float v) {
    const int bits = __float_as_int(v);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

__global__ void collect(const float* x, int* bits, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) atomicMax(bits + blockIdx.y, ordered(x[blockIdx.y * (long long)n + i]));
}

__global__ void k(const float* x, const int* bits, float* out, int rows, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= rows) return;
    float result = __int_as_float(bits[i] >= 0 ? bits[i] : bits[i] ^ 0x7fffffff);
    for (int j = 0; j < n; ++j)
        if (isnan(x[i * (long long)n + j])) result = x[i * (long long)n + j];
    out[i] = result;
}
