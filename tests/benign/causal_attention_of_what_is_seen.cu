// Scores, weights and products below the diagonal alone: what is hidden is neither written nor read.
// kernel-lsp: 1
// task: tasks.py::causal_attention
// op: causal_attention(q: f32[B, T, D], k: f32[B, T, D], v: f32[B, T, D]) -> (out: f32[B, T, D])
// scratch: weights: f32[B, T, T]
// launch: weigh<<<B * T, 32>>>(q, k, weights, T, D)
// launch: combine<<<B * T, 32>>>(weights, v, out, T, D)

__global__ void weigh(const float* q, const float* k, float* weights, int T, int D) {
    const int row = blockIdx.x, i = row % T, first = row - i;
    float* own = weights + (size_t)row * T;
    float peak = -INFINITY, sum = 0.0f;
    for (int j = threadIdx.x; j <= i; j += 32) {
        float score = 0.0f;
        for (int d = 0; d < D; ++d) score += q[(size_t)row * D + d] * k[(size_t)(first + j) * D + d];
        own[j] = score / sqrtf((float)D);
        peak = own[j] > peak || own[j] != own[j] ? own[j] : peak;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, peak, step);
        peak = other > peak || other != other ? other : peak;
    }
    for (int j = threadIdx.x; j <= i; j += 32) sum += own[j] = expf(own[j] - peak);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int j = threadIdx.x; j <= i; j += 32) own[j] /= sum;
}

__global__ void combine(const float* weights, const float* v, float* out, int T, int D) {
    const int row = blockIdx.x, i = row % T, first = row - i;
    for (int d = threadIdx.x; d < D; d += 32) {
        float sum = 0.0f;
        for (int j = 0; j <= i; ++j) sum += weights[(size_t)row * T + j] * v[(size_t)(first + j) * D + d];
        out[(size_t)row * D + d] = sum;
    }
}
