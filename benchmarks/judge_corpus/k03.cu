// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// launch: rms_warp<<<ceil_div(B, 4), 128>>>(x, weight, out, B, D)

__global__ void __launch_bounds__(128)
rms_warp(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= B) return;
    x += (size_t)row * D;
    out += (size_t)row * D;
    float sum = 0.0f;
    for (int i = lane; i < D; i += 32) sum = fmaf(x[i], x[i], sum);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const float inverse = 1.0f / (sqrtf(sum / D) + 1e-6f);
    for (int i = lane; i < D; i += 32) out[i] = x[i] * inverse * weight[i];
}
