// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// scratch: row_max: f32[H, T], row_sum: f32[H, T]
// fill: row_max = -3.0e38
// fill: row_sum = 0
// launch: find_max<<<dim3(ceil_div(T, 64), T, H), 64>>>(scores, row_max, T)
// launch: find_sum<<<dim3(ceil_div(T, 64), T, H), 64>>>(scores, row_max, row_sum, T)
// launch: divide<<<dim3(ceil_div(T, 64), T, H), 64>>>(scores, row_max, row_sum, out, T)

__device__ __forceinline__ float scaled(const float* scores, int row, int column, int T) {
    return column <= row ? scores[((size_t)blockIdx.z * T + row) * T + column] * 0.125f : -INFINITY;
}

__global__ void find_max(const float* __restrict__ scores, float* __restrict__ row_max, int T) {
    const int column = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
    float best = scaled(scores, row, column, T);
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    if (threadIdx.x % 32 == 0) atomicMax(&row_max[blockIdx.z * T + row], best);
}

__global__ void find_sum(const float* __restrict__ scores, const float* __restrict__ row_max,
                         float* __restrict__ row_sum, int T) {
    const int column = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
    float sum = expf(scaled(scores, row, column, T) - row_max[blockIdx.z * T + row]);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&row_sum[blockIdx.z * T + row], sum);
}

__global__ void divide(const float* __restrict__ scores, const float* __restrict__ row_max,
                       const float* __restrict__ row_sum, float* __restrict__ out, int T) {
    const int column = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
    if (column >= T) return;
    const int at = blockIdx.z * T + row;
    out[(size_t)at * T + column] = expf(scaled(scores, row, column, T) - row_max[at]) / row_sum[at];
}
