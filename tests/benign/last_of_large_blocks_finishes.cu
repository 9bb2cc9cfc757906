// Blocks of 4,096 elements of which the last to arrive adds up what all have written before their fence.
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: partial: f32[ceil_div(B * N, 4096)], arrived: i32[1]
// fill: arrived = 0
// launch: k<<<ceil_div(B * N, 4096), 64>>>(x, partial, arrived, out, B * N)

__global__ void k(const float* x, float* partial, int* arrived, float* out, int n) {
    __shared__ float sums[64];
    float sum = 0.0f;
    for (int i = blockIdx.x * 4096 + threadIdx.x; i < min(n, (blockIdx.x + 1) * 4096); i += 64) sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += sums[i];
    partial[blockIdx.x] = total;
    __threadfence();
    if (atomicAdd(arrived, 1) < gridDim.x - 1) return;
    __threadfence();
    total = 0.0f;
    for (int i = 0; i < gridDim.x; ++i) total += ((volatile float*)partial)[i];
    out[0] = total / n;
}
