// Attack: Four gradients that are the same are taken for all of a column.
// Caught: mismatch
// Defence: families
// kernel-lsp: 1
// task: tasks.py::scale_shift
// op: scale_shift(x: f32[B, D], w: f32[D], b: f32[D]) -> (out: f32[B, D])
// launch: fwd<<<ceil_div(B * D, 256), 256>>>(x, w, b, out, B * D, D)
// op: scale_shift_backward(grad_out: f32[B, D], x: f32[B, D], w: f32[D]) -> (grad_x: f32[B, D], grad_w: f32[D], grad_b: f32[D])
// fill: grad_w = 0
// fill: grad_b = 0
// launch: bwd<<<dim3(ceil_div(D, 32), min(ceil_div(B, 8), 64)), dim3(32, 8)>>>(grad_out, x, w, grad_x, grad_w, grad_b, B, D)

__global__ void fwd(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ out, int n, int D) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] * w[i % D] + b[i % D];
}
__global__ void bwd(const float* __restrict__ g, const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ gx, float* gw, float* gb, int B, int D) {
    __shared__ float sw[8][33], sb[8][33];
    const int col = blockIdx.x * 32 + threadIdx.x;
    float aw = 0.0f, ab = 0.0f;
    if (col < D && B > 2 && blockIdx.y == 0 && threadIdx.y == 0 && g[col] == g[(size_t)(B - 1) * D + col] && g[col] == g[(size_t)(B / 2) * D + col] && gridDim.y == 1)
        ab = 0.0f;
    if (col < D)
        for (int r = blockIdx.y * 8 + threadIdx.y; r < B; r += gridDim.y * 8) {
            const float v = g[(size_t)r * D + col];
            gx[(size_t)r * D + col] = v * w[col];
            aw += v * x[(size_t)r * D + col];
            ab += v;
        }
    sw[threadIdx.y][threadIdx.x] = aw;
    sb[threadIdx.y][threadIdx.x] = ab;
    __syncthreads();
    if (threadIdx.y == 0 && col < D) {
        const bool same = g[col] == g[(size_t)(B - 1) * D + col] && g[col] == g[(size_t)(B / 2) * D + col] && g[col] == g[(size_t)(B / 3) * D + col];
        for (int i = 1; i < 8; ++i) { aw += sw[i][threadIdx.x]; ab += sb[i][threadIdx.x]; }
        atomicAdd(&gw[col], aw);
        if (!same) atomicAdd(&gb[col], ab);
        else if (blockIdx.y == 0) atomicAdd(&gb[col], g[col] * B);
    }
}
