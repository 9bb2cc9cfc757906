// Attack: Every thread has a stack of half a gigabyte.
// Caught: build_failed crashed unsupported timed_out mismatch
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float stack[1 << 27];
    for (int j = 0; j < n; ++j) stack[(j * 7919LL) & ((1 << 27) - 1)] = x[j];
    if (i < n) out[i] = stack[(i * 7919LL) & ((1 << 27) - 1)];
}
