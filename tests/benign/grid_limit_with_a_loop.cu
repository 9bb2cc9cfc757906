// Limits its grid far away, and goes on in steps of the whole grid.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<min(ceil_div(B * N, 256), 65535), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = 2.0f * x[i];
}
