// The output holds the exponentials between two passes: what a block reads there it has written itself.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[64];
    const float* row = x + blockIdx.x * (long long)n;
    float* mine = out + blockIdx.x * (long long)n;
    float top = -3.402823466e38f;
    for (int i = threadIdx.x; i < n; i += 64) top = fmaxf(top, row[i]);
    part[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < 64; ++i) top = fmaxf(top, part[i]);
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += mine[i] = expf(row[i] - top);
    part[threadIdx.x] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += part[i];
    for (int i = threadIdx.x; i < n; i += 64) mine[i] /= total;
}
