// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// scratch: losses: f32[B]
// launch: warp_loss<<<ceil_div(B, 4), dim3(32, 4)>>>(logits, targets, losses, B)
// launch: mean_loss<<<1, 32>>>(losses, out, B)

constexpr int V = 130;

__global__ void warp_loss(const float* __restrict__ logits, const int* __restrict__ targets,
                          float* __restrict__ losses, int B) {
    const int b = blockIdx.x * 4 + threadIdx.y;
    if (b >= B) return;
    const float* row = logits + (size_t)b * V;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < V; i += 32) best = fmaxf(best, row[i]);
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    float sum = 0.0f;
    for (int i = threadIdx.x; i < V; i += 32) sum += expf(row[i] - best);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) losses[b] = logf(sum) + best - row[targets[b]];
}

__global__ void mean_loss(const float* __restrict__ losses, float* __restrict__ out, int B) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < B; i += 32) sum += losses[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[0] = sum / B;
}
