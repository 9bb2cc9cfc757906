// Vector loads that the contract makes right; other sizes are left to PyTorch.
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// where: N % 2 == 0
// launch: k<<<ceil_div(B * N // 2, 128), 128>>>(x, y, out, B * N // 2)

__global__ void k(const float2* x, const float2* y, float2* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float2 a = x[i], b = y[i];
    const float u = a.x + b.x, v = a.y + b.y;
    out[i] = make_float2(u < 0.0f ? 0.0f : u, v < 0.0f ? 0.0f : v);
}
