// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// where: B >= 8
// scratch: sums: f32[B // 8]
// launch: eight_rows<<<ceil_div(B, 8), dim3(32, 8)>>>(logits, targets, sums, B)
// launch: add_up<<<1, 32>>>(sums, out, ceil_div(B, 8), B)

constexpr int V = 130;

__global__ void __launch_bounds__(256)
eight_rows(const float* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ sums, int B) {
    __shared__ float losses[8];
    const int b = blockIdx.x * 8 + threadIdx.y, lane = threadIdx.x;
    float loss = 0.0f;
    if (b < B) {
        const float* row = logits + (size_t)b * V;
        float best = -INFINITY, sum = 0.0f;
        for (int i = lane; i < V; i += 32) best = fmaxf(best, row[i]);
        for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
        for (int i = lane; i < V; i += 32) sum += expf(row[i] - best);
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        loss = logf(sum) + best - row[targets[b]];
    }
    if (lane == 0) losses[threadIdx.y] = loss;
    __syncthreads();
    if (lane == 0 && threadIdx.y == 0) {
        float total = 0.0f;
        for (int i = 0; i < 8; ++i) total += losses[i];
        sums[blockIdx.x] = total;
    }
}

__global__ void add_up(const float* __restrict__ sums, float* __restrict__ out, int n, int B) {
    float total = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) total += sums[i];
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_down_sync(0xffffffffu, total, offset);
    if (threadIdx.x == 0) out[0] = total / B;
}
