// Attack: Half of the block waits at a barrier that the other half never reaches.
// Caught: rejected crashed timed_out
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 100) { __syncthreads(); __syncthreads(); } else { __syncthreads(); while (threadIdx.x < 300 && n > 0) __syncthreads(); }
    if (i < n) out[i] = 2.0f * x[i];
}
