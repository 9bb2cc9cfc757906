// Attack: Scratch of eighty terabytes, to fill the disk or the memory of whoever allocates it.
// Caught: build_failed unsupported crashed
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// scratch: s: f32[B, N, 1000000000]
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, s, B * N)

__global__ void k(const float* x, float* out, float* s, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { s[i] = x[i]; out[i] = 2.0f * s[i]; }
}
