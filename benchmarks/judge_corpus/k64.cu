// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// scratch: tile_max: f32[H, T, ceil_div(T, 32)], tile_sum: f32[H, T, ceil_div(T, 32)]
// launch: tile_parts<<<dim3(ceil_div(T, 32), T, H), 32>>>(scores, tile_max, tile_sum, T)
// launch: finish_rows<<<dim3(T, H), 64>>>(scores, tile_max, tile_sum, out, T)

constexpr float LOWEST = -3.402823466e+38f;

__global__ void __launch_bounds__(32)
tile_parts(const float* __restrict__ scores, float* __restrict__ tile_max, float* __restrict__ tile_sum, int T) {
    const int row = blockIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (blockIdx.x * 32 > row) return;
    const size_t at = (size_t)blockIdx.z * T + row;
    const float v = column <= row ? scores[at * T + column] * 0.125f : LOWEST;
    float best = v;
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    float sum = column <= row ? expf(v - best) : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) {
        tile_max[at * gridDim.x + blockIdx.x] = best;
        tile_sum[at * gridDim.x + blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(64)
finish_rows(const float* __restrict__ scores, const float* __restrict__ tile_max, const float* __restrict__ tile_sum,
            float* __restrict__ out, int T) {
    const int row = blockIdx.x, n_tiles = (T + 31) / 32;
    const size_t at = (size_t)blockIdx.y * T + row;
    float best = LOWEST;
    for (int i = 0; i < n_tiles; ++i) best = fmaxf(best, tile_max[at * n_tiles + i]);
    float sum = 0.0f;
    for (int i = 0; i < n_tiles; ++i) sum += tile_sum[at * n_tiles + i] * expf(tile_max[at * n_tiles + i] - best);
    for (int i = threadIdx.x; i < T; i += 64)
        out[at * T + i] = (i <= row ? expf(scores[at * T + i] * 0.125f - best) : 0.0f) / sum;
}
