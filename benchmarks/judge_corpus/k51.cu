// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// scratch: losses: f32[B]
// launch: row_in_registers<<<ceil_div(B, 2), 64>>>(logits, targets, losses, B)
// launch: mean_of<<<1, 128>>>(losses, out, B)

constexpr int V = 130, PER_LANE = 5;

__global__ void __launch_bounds__(64)
row_in_registers(const float* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ losses,
                 int B) {
    const int b = blockIdx.x * 2 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (b >= B) return;
    const long long target = targets[b];
    float v[PER_LANE], chosen = 0.0f, best = -INFINITY;
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) {
        const int i = j * 32 + lane;
        v[j] = i < V ? logits[(size_t)b * V + i] : -INFINITY;
        if (i == target) chosen = v[j];
        best = fmaxf(best, v[j]);
    }
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) sum += expf(v[j] - best);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    chosen = __shfl_sync(0xffffffffu, chosen, (int)(target % 32));
    if (lane == 0) losses[b] = logf(sum) + (best - chosen);
}

__global__ void __launch_bounds__(128) mean_of(const float* __restrict__ losses, float* __restrict__ out, int B) {
    __shared__ float part[128];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < B; i += 128) sum += losses[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half >>= 1) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = part[0] / B;
}
