// expf(x) - 1, as everybody writes it: near zero it keeps 1e-7 of one, and expm1f more.
// kernel-lsp: 1
// task: tasks.py::elu_and_softplus
// op: elu_and_softplus(x: f32[B, D]) -> (a: f32[B, D], b: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, a, b, B * D)

__global__ void k(const float* __restrict__ x, float* __restrict__ a, float* __restrict__ b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i];
    a[i] = v > 0.0f ? v : 0.7f * (expf(v) - 1.0f);
    b[i] = v > 20.0f ? v : logf(1.0f + expf(v));
}
