// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// launch: softmax_block<64><<<dim3(T, H), 64>>>(scores, out, T)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
softmax_block(const float* __restrict__ scores, float* __restrict__ out, int T) {
    __shared__ float warps[BLOCK / 32];
    const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t base = ((size_t)blockIdx.y * T + row) * T;
    float best = 0.0f;
    for (int i = threadIdx.x; i <= row; i += BLOCK) best = fmaxf(best, scores[base + i] * 0.125f);
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    if (lane == 0) warps[warp] = best;
    __syncthreads();
    for (int i = 0; i < BLOCK / 32; ++i) best = fmaxf(best, warps[i]);
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i <= row; i += BLOCK) sum += expf(scores[base + i] * 0.125f - best);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) warps[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) sum += warps[i];
    for (int i = threadIdx.x; i < T; i += BLOCK)
        out[base + i] = (i <= row ? expf(scores[base + i] * 0.125f - best) : 0.0f) / sum;
}
