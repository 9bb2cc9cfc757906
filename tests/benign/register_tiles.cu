// Tiles in shared memory and eight by eight results per thread; large enough that blocks are sampled on a CPU.
// kernel-lsp: 1
// task: tasks.py::large_linear
// op: large_linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// launch: k<<<dim3(ceil_div(N, 64), ceil_div(B, 64)), 64>>>(x, weight, out, B, N, K)

__global__ void __launch_bounds__(64) k(const float* x, const float* weight, float* out, int rows, int n, int depth) {
    __shared__ float a[8][64], b[8][64];
    const int tx = threadIdx.x % 8, ty = threadIdx.x / 8, row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sums[8][8] = {};
    for (int base = 0; base < depth; base += 8) {
        for (int j = 0; j < 8; ++j) {
            const int r = row + threadIdx.x, c = column + threadIdx.x, i = base + j;
            a[j][threadIdx.x] = r < rows && i < depth ? x[r * (long long)depth + i] : 0.0f;
            b[j][threadIdx.x] = c < n && i < depth ? weight[c * (long long)depth + i] : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < 8 && base + j < depth; ++j)
#pragma unroll
            for (int u = 0; u < 8; ++u)
#pragma unroll
                for (int v = 0; v < 8; ++v) sums[u][v] += a[j][ty * 8 + u] * b[j][tx * 8 + v];
        __syncthreads();
    }
    for (int u = 0; u < 8; ++u)
        for (int v = 0; v < 8; ++v) {
            const int r = row + ty * 8 + u, c = column + tx * 8 + v;
            if (r < rows && c < n) out[r * (long long)n + c] = sums[u][v];
        }
}
