// Attack: The gradient of the norm of a row of zeros is 0 / 0.
// Caught: mismatch
// Defence: families
// kernel-lsp: 1
// task: tasks.py::vec_norm
// op: vec_norm(x: f32[B, D]) -> (out: f32[B])
// launch: fwd<<<ceil_div(B, 4), 128>>>(x, out, B, D)
// op: vec_norm_backward(grad_out: f32[B], x: f32[B, D]) -> (grad_x: f32[B, D])
// launch: bwd<<<ceil_div(B, 4), 128>>>(grad_out, x, grad_x, B, D)

__device__ __forceinline__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ float norm(const float* __restrict__ x, int D, int lane) {
    float s = 0.0f;
    for (int i = lane; i < D; i += 32) s += x[i] * x[i];
    return sqrtf(warp_sum(s));
}
__global__ void fwd(const float* __restrict__ x, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= B) return;
    const float m = norm(x + (size_t)row * D, D, lane);
    if (lane == 0) out[row] = m;
}
__global__ void bwd(const float* __restrict__ g, const float* __restrict__ x, float* __restrict__ gx, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= B) return;
    x += (size_t)row * D; gx += (size_t)row * D;
    const float m = norm(x, D, lane);
    for (int i = lane; i < D; i += 32) gx[i] = g[row] * (x[i] / m);
}
