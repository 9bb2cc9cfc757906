// The maximum and its place in one word of 64 bits, so that the greatest word is the first of the greatest numbers.
// kernel-lsp: 1
// task: tasks.py::arg_max
// op: arg_max(x: f32[B, N]) -> (out: i64[B])
// launch: k<<<B, 256>>>(x, out, N)

__device__ unsigned long long key_of(float value, int place) {
    unsigned bits = isnan(value) ? 0xffffffffu : __float_as_uint(value == 0.0f ? 0.0f : value);
    if (!isnan(value)) bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | (0xffffffffu - (unsigned)place);
}

__global__ void k(const float* x, long long* out, int n) {
    __shared__ unsigned long long best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    unsigned long long mine = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine = max(mine, key_of(x[blockIdx.x * (long long)n + i], i));
    atomicMax(&best, mine);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = 0xffffffffu - (unsigned)best;
}
