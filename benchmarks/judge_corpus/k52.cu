// kernel-lsp: 1
// task: cross_entropy.py::cross_entropy
// op: cross_entropy(logits: f32[B, 130], targets: i64[B]) -> (out: f32[])
// scratch: losses: f32[B], arrived: i32[1]
// fill: arrived = 0
// launch: row_losses<<<B, 64>>>(logits, targets, losses, arrived, out, B)

constexpr int V = 130;

__global__ void __launch_bounds__(64)
row_losses(const float* __restrict__ logits, const long long* __restrict__ targets, float* losses, int* arrived,
           float* __restrict__ out, int B) {
    __shared__ float shared[2];
    __shared__ bool last;
    const float* row = logits + (size_t)blockIdx.x * V;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float best = -INFINITY;
    for (int i = threadIdx.x; i < V; i += 64) best = fmaxf(best, row[i]);
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    if (lane == 0) shared[warp] = best;
    __syncthreads();
    best = fmaxf(shared[0], shared[1]);
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < V; i += 64) sum += expf(row[i] - best);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) shared[warp] = sum;
    __syncthreads();

    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(shared[0] + shared[1]) + best - row[targets[blockIdx.x]];
        __threadfence();
        last = atomicAdd(arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || warp != 0) return;
    __threadfence();
    double total = 0.0;
    for (int i = lane; i < B; i += 32) total += ((volatile float*)losses)[i];
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_down_sync(0xffffffffu, total, offset);
    if (lane == 0) out[0] = (float)(total / B);
}
