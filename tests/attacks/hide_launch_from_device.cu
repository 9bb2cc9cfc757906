// Attack: Launches another kernel from the device, which goes on when the launch has ended.
// Caught: build_failed rejected
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void later(const float* x, float* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = 2.0f * x[i];
}

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) later<<<1, 1>>>(x, out, n);
}
