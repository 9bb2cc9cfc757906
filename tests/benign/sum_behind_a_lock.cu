// Blocks add to a sum one after the other, behind a lock with fences on both sides.
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: lock: i32[1]
// fill: out = 0
// fill: lock = 0
// launch: k<<<ceil_div(B * N, 2048), 64>>>(x, lock, out, B * N)

__global__ void k(const float* x, int* lock, float* out, int n) {
    __shared__ float sums[64];
    float sum = 0.0f;
    for (int i = blockIdx.x * 2048 + threadIdx.x; i < min(n, (blockIdx.x + 1) * 2048); i += 64) sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += sums[i];
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    *(volatile float*)out += total / n;
    __threadfence();
    atomicExch(lock, 0);
}
