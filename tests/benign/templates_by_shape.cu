// Template arguments computed from the shape, and variants by condition.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch[N <= 64]: k<32, true><<<B, 32>>>(x, out, N)
// launch[N > 64]: k<128, N % 128 == 0><<<B, 128>>>(x, out, N)

template <int THREADS, bool IS_WHOLE>
__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[THREADS];
    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += THREADS) sum += x[blockIdx.x * (long long)n + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < THREADS; ++i) sum += part[i];
        out[blockIdx.x] = sum;
    }
}
