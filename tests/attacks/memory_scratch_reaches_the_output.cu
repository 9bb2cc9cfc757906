// Attack: Writes the output through the scratch tensor, which the allocator puts before it.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// scratch: s: f32[B, N]
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, s, out, B * N)

__global__ void k(const float* x, float* s, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const long long distance = out - s;
    if (i < n) { s[i] = x[i]; s[distance + i + n] = 2.0f * x[i]; }
}
