// Attack: Every block waits for all others, of a grid that grows with the input: where it is more than runs at once, those
//   that run wait for those that cannot start.
// Caught: crashed
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: parts: f32[ceil_div(B * N, 96)], arrived: i32[1]
// fill: arrived = 0
// launch: k<<<ceil_div(B * N, 96), 32>>>(x, parts, arrived, out, B * N)

__global__ void k(const float* x, float* parts, int* arrived, float* out, int n) {
    const int last = min(n, blockIdx.x * 96 + 96);
    float sum = 0.0f;
    for (int i = blockIdx.x * 96 + threadIdx.x; i < last; i += 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
        __threadfence();
    }
    __syncwarp();
    if (blockIdx.x != 0) return;
    sum = 0.0f;
    for (int i = threadIdx.x; i < gridDim.x; i += 32) sum += parts[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[0] = sum / n;
}
