// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// fill: out = 0
// launch: loss_rows<<<ceil_div(B, 8), 256>>>(logits, targets, out, B)

constexpr int V = 130;
constexpr int ROWS = 8;

__global__ void __launch_bounds__(256)
loss_rows(const float* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ out, int B) {
    __shared__ float losses[ROWS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int b = blockIdx.x * ROWS + warp;
    float loss = 0.0f;
    if (b < B) {
        const float* row = logits + (size_t)b * V;
        float best = -INFINITY;
        for (int i = lane; i < V; i += 32) best = fmaxf(best, row[i]);
        for (int offset = 16; offset > 0; offset >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
        float sum = 0.0f;
        for (int i = lane; i < V; i += 32) sum += expf(row[i] - best);
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        loss = logf(sum) + best - row[targets[b]];
    }
    if (lane == 0) losses[warp] = loss;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < ROWS; ++i) total += losses[i];
        atomicAdd(out, total / (gridDim.x * ROWS));
    }
}
