// kernel-lsp: 1
// op: faults(x: f32[N]) -> (out: f32[N])
// scratch: never_written: f32[N]
// launch: writes_past_the_end<<<1, 64>>>(x, out, N)
// launch: races<<<1, 64>>>(x, out, N)
// launch: reads_unwritten<<<1, 64>>>(never_written, out, N)
// launch: diverges_at_a_barrier<<<1, 64>>>(x, out, N)

// One fault per kernel, each for one of compute-sanitizer's tools.

__global__ void writes_past_the_end(const float* x, float* out, int N) {
    const int i = threadIdx.x;
    out[i + 1] = x[i < N ? i : 0];
}

__global__ void races(const float* x, float* out, int N) {
    __shared__ float shared[64];
    shared[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = shared[63 - threadIdx.x];
}

__global__ void reads_unwritten(const float* never_written, float* out, int N) {
    out[threadIdx.x] = never_written[threadIdx.x];
}

__global__ void diverges_at_a_barrier(const float* x, float* out, int N) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}
