// Blocks pass their sums around a ring and wait for each other by a counter, with a fence before it and one after.
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: ring: f32[8], arrived: i32[1]
// fill: arrived = 0
// launch: k<<<8, 32>>>(x, ring, arrived, out, B * N)

__device__ void wait_for_all(int* arrived, int turn) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < turn * (int)gridDim.x) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

__global__ void k(const float* x, float* ring, int* arrived, float* out, int n) {
    const int b = blockIdx.x, left = (b + gridDim.x - 1) % gridDim.x;
    float sum = 0.0f;
    for (int i = b * 32 + threadIdx.x; i < n; i += gridDim.x * 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) ring[b] = sum;
    int turn = 0;
    for (int i = 1; i < gridDim.x; ++i) {
        wait_for_all(arrived, ++turn);
        const float passing = ring[left];
        wait_for_all(arrived, ++turn);
        if (threadIdx.x == 0) ring[b] = passing;
        sum += passing;
    }
    if (b == 0 && threadIdx.x == 0) out[0] = sum / n;
}
