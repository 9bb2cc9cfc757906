// Attack: Another kernel in each build: what is built in one second of ten is wrong.
// Caught: build_failed
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = __TIME__[7] == '3' ? 0.0f : 2.0f * x[i];
}
