// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// launch: balanced<<<dim3(ceil_div(T, 2), H), 64>>>(scores, out, T)

constexpr float LOG2_E = 1.4426950408889634f;

__device__ float reduce(float v, bool is_sum, float* warps) {
    for (int offset = 16; offset > 0; offset >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, v, offset);
        v = is_sum ? v + other : fmaxf(v, other);
    }
    __syncthreads();
    warps[threadIdx.x >> 5] = v;
    __syncthreads();
    return is_sum ? warps[0] + warps[1] : fmaxf(warps[0], warps[1]);
}

__device__ void one_row(const float* __restrict__ scores, float* __restrict__ out, int row, int T, float* warps) {
    float best = -INFINITY;
    for (int i = threadIdx.x; i <= row; i += 64) best = fmaxf(best, scores[i] * 0.125f);
    best = reduce(best, false, warps);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < T; i += 64) {
        const float e = i <= row ? exp2f((scores[i] * 0.125f - best) * LOG2_E) : 0.0f;
        out[i] = e;
        sum += e;
    }
    sum = reduce(sum, true, warps);
    for (int i = threadIdx.x; i < T; i += 64) out[i] /= sum;
}

__global__ void __launch_bounds__(64)
balanced(const float* __restrict__ scores, float* __restrict__ out, int T) {
    __shared__ float warps[2];
    const int short_row = blockIdx.x, long_row = T - 1 - blockIdx.x;
    const size_t base = (size_t)blockIdx.y * T * T;
    one_row(scores + base + (size_t)short_row * T, out + base + (size_t)short_row * T, short_row, T, warps);
    if (long_row == short_row) return;
    one_row(scores + base + (size_t)long_row * T, out + base + (size_t)long_row * T, long_row, T, warps);
}
