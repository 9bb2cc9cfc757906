// Partial sums in scratch, and a second launch that adds them.
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: partial: f32[64]
// launch: parts<<<64, 256>>>(x, partial, B * N)
// launch: k<<<1, 32>>>(partial, out, B * N)

__global__ void parts(const float* x, float* partial, int n) {
    __shared__ float sums[256];
    float sum = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 64 * 256) sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = sums[0];
}

__global__ void k(const float* partial, float* out, int n) {
    float sum = partial[threadIdx.x] + partial[threadIdx.x + 32];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[0] = sum / n;
}
