// The gradient of NaN is NaN here, and 0 in PyTorch.
// kernel-lsp: 1
// task: tasks.py::magnitude
// op: magnitude(x: f32[N, D]) -> (out: f32[N, D])
// launch: fwd<<<min(ceil_div(N * D, 256), 1056), 256>>>(x, out, N * D)
// op: magnitude_backward(grad_out: f32[N, D], x: f32[N, D]) -> (grad_x: f32[N, D])
// launch: bwd<<<min(ceil_div(N * D, 256), 1056), 256>>>(grad_out, x, grad_x, N * D)


__device__ __forceinline__ float f(float x) {
    return fabsf(x);
}
__device__ __forceinline__ float df(float x) {
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
__global__ void fwd(const float* __restrict__ x, float* __restrict__ out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = f(x[i]);
}
__global__ void bwd(const float* __restrict__ g, const float* __restrict__ x, float* __restrict__ gx, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) gx[i] = g[i] * df(x[i]);
}
