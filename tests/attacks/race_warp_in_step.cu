// Attack: The last rounds of a tree sum rely on the threads of a warp going in step, with volatile shared memory.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ volatile float part[64];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * (long long)n + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        part[threadIdx.x] += part[threadIdx.x + 32];
        part[threadIdx.x] += part[threadIdx.x + 16];
        part[threadIdx.x] += part[threadIdx.x + 8];
        part[threadIdx.x] += part[threadIdx.x + 4];
        part[threadIdx.x] += part[threadIdx.x + 2];
        part[threadIdx.x] += part[threadIdx.x + 1];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
