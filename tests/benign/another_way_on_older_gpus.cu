// Reductions of a warp by one instruction where there is one, and by shuffles elsewhere.
// kernel-lsp: 1
// task: tasks.py::parity
// op: parity(x: i64[B, N]) -> (out: i64[B, N])
// launch: k<<<ceil_div(B * N, 32), 32>>>(x, out, B * N)

__device__ unsigned largest(unsigned value) {
#if __CUDA_ARCH__ >= 900
    return __reduce_max_sync(0xffffffffu, value);
#else
    for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
#endif
}

__global__ void k(const long long* x, long long* out, int n) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const unsigned bit = i < n ? x[i] & 1 : 0;
    const unsigned any = largest(bit);
    if (i < n) out[i] = any & bit;
}
