// The depth is split over blocks that write their parts to scratch, and a second launch adds them.
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// scratch: part: f32[5, B, N]
// launch: parts<<<dim3(ceil_div(N, 32), B, 5), 32>>>(x, weight, part, B, N, K)
// launch: k<<<ceil_div(B * N, 128), 128>>>(part, out, B * N)

__global__ void parts(const float* x, const float* weight, float* part, int rows, int n, int depth) {
    const int column = blockIdx.x * 32 + threadIdx.x, chunk = (depth + 4) / 5, first = blockIdx.z * chunk;
    if (column >= n) return;
    float sum = 0.0f;
    for (int i = first; i < min(first + chunk, depth); ++i)
        sum += x[blockIdx.y * (long long)depth + i] * weight[column * (long long)depth + i];
    part[(blockIdx.z * (long long)rows + blockIdx.y) * n + column] = sum;
}

__global__ void k(const float* part, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int z = 0; z < 5; ++z) sum += part[z * (long long)n + i];
    out[i] = sum;
}
