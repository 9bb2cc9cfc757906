// The row is kept in dynamic shared memory between passes.
// kernel-lsp: 1
// task: tasks.py::layer_norm
// op: layer_norm(x: f32[B, N], weight: f32[N], bias: f32[N]) -> (out: f32[B, N])
// where: N <= 8192
// launch: k<<<B, 128, N * 4 + 512>>>(x, weight, bias, out, N)

extern __shared__ float memory[];

__device__ float block_sum(float v, float* part) {
    part[threadIdx.x] = v;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float total = part[0];
    __syncthreads();
    return total;
}

__global__ void k(const float* x, const float* weight, const float* bias, float* out, int n) {
    float *part = memory, *row = memory + 128;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += row[i] = x[blockIdx.x * (long long)n + i];
    const float mean = block_sum(sum, part) / n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) squares += (row[i] - mean) * (row[i] - mean);
    const float scale = 1.0f / sqrtf(block_sum(squares, part) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 128)
        out[blockIdx.x * (long long)n + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
