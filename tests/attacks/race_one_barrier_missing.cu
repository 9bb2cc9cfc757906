// Attack: A tree sum with a barrier in every round but between them.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[128];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[blockIdx.x * (long long)n + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2)
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
