// Attack: Assembly at file scope: NVRTC drops it, and a compiler that builds the host part takes a file of the user in.
// Caught: build_failed
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

asm(".incbin \"/etc/hostname\"");

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
