// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// scratch: losses: f32[B]
// launch: block_loss<256><<<B, 256>>>(logits, targets, losses)
// launch: average<<<1, 32>>>(losses, out, B)

constexpr int V = 130;

template <int BLOCK>
__device__ float block_reduce(float v, float identity, bool is_max, float* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_down_sync(0xffffffffu, v, offset);
        v = is_max ? fmaxf(v, other) : v + other;
    }
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    if (threadIdx.x < BLOCK / 32) {
        v = shared[threadIdx.x];
        for (int offset = BLOCK / 64; offset > 0; offset /= 2) {
            const float other = __shfl_down_sync(0xffffffffu, v, offset);
            v = is_max ? fmaxf(v, other) : v + other;
        }
        if (threadIdx.x == 0) shared[0] = v;
    }
    __syncthreads();
    v = shared[0];
    __syncthreads();
    return v;
}

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
block_loss(const float* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ losses) {
    __shared__ float shared[BLOCK / 32];
    const float* row = logits + (size_t)blockIdx.x * V;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < V; i += BLOCK) best = fmaxf(best, row[i]);
    best = block_reduce<BLOCK>(best, -INFINITY, true, shared);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < V; i += BLOCK) sum += expf(row[i] - best);
    sum = block_reduce<BLOCK>(sum, 0.0f, false, shared);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + best - row[targets[blockIdx.x]];
}

__global__ void average(const float* __restrict__ losses, float* __restrict__ out, int B) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < B; i += 32) sum += losses[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[0] = sum / B;
}
