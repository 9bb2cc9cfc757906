// Attack: Leaves out the barrier at the end of a turn, so that a fast warp overwrites the tile that others still read.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[M, K], weight: f32[N, K]) -> (out: f32[M, N])
// launch: k<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(x, weight, out, M, N, K)

__global__ void k(const float* x, const float* weight, float* out, int m, int n, int depth) {
    __shared__ float left[16][17], right[16][17];
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    const int other = blockIdx.x * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int first = 0; first < depth; first += 16) {
        const int k = first + threadIdx.x;
        left[threadIdx.y][threadIdx.x] = row < m && k < depth ? x[row * (long long)depth + k] : 0.0f;
        right[threadIdx.y][threadIdx.x] = other < n && k < depth ? weight[other * (long long)depth + k] : 0.0f;
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += left[threadIdx.y][j] * right[threadIdx.x][j];
    }
    if (row < m && column < n) out[row * (long long)n + column] = sum;
}
