// Attack: Calls itself without end.
// Caught: unsupported crashed timed_out build_failed
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ __noinline__ float deeper(float v, int n) { return n == -1 ? v : deeper(v, n + 2) + 1e-30f; }

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = deeper(2.0f * x[i], 0);
}
