// The last block to arrive starts the next generation by a volatile store; the others look for it by volatile loads. What
// each generation reads was written in the one before.
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: ring: f32[8], state: i32[2]
// fill: state = 0
// launch: k<<<8, 32>>>(x, ring, state, out, B * N)

__device__ void wait_for_all(int* state) {
    __syncthreads();
    if (threadIdx.x == 0) {
        volatile int* generation = state + 1;
        const int now = *generation;
        __threadfence();
        if (atomicAdd(state, 1) == gridDim.x - 1) {
            *state = 0;
            __threadfence();
            *generation = now + 1;
        } else {
            while (*generation == now) __nanosleep(20);
        }
        __threadfence();
    }
    __syncthreads();
}

__global__ void k(const float* x, float* ring, int* state, float* out, int n) {
    const int b = blockIdx.x, left = (b + gridDim.x - 1) % gridDim.x;
    float sum = 0.0f;
    for (int i = b * 32 + threadIdx.x; i < n; i += gridDim.x * 32) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) ring[b] = sum;
    for (int i = 1; i < gridDim.x; ++i) {
        wait_for_all(state);
        const float passing = ring[left];
        wait_for_all(state);
        if (threadIdx.x == 0) ring[b] = passing;
        sum += passing;
    }
    if (b == 0 && threadIdx.x == 0) out[0] = sum / n;
}
