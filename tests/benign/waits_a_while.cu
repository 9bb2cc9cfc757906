// A producer warp publishes through shared memory; the other waits for it, and backs off by a loop of no use.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 32), 64>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ volatile float values[32];
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, i = blockIdx.x * 32 + lane;
    if (threadIdx.x < 32) {
        values[lane] = i < n ? 2.0f * x[i] : 0.0f;
        __threadfence_block();
        __syncwarp();
        if (lane == 0) ready = 1;
    } else {
        while (ready == 0) {
            for (volatile int pause = 0; pause < 8; ++pause) {}
        }
        __threadfence_block();
        if (i < n) out[i] = values[lane];
    }
}
