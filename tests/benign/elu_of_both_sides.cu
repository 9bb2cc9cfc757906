// PyTorch's own formula for elu, by fmaxf and fminf, which leave NaN out.
// kernel-lsp: 1
// task: tasks.py::elu
// op: elu(x: f32[N, D]) -> (out: f32[N, D])
// launch: k<<<ceil_div(N * D, 256), 256>>>(x, out, N * D)
__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    out[i] = fmaxf(v, 0.f) + fminf(__expf(v) - 1.0f, 0.f);
}
