// Tiles of a product in two buffers in turn, with one barrier a turn.
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[M, K], weight: f32[N, K]) -> (out: f32[M, N])
// launch: k<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(x, weight, out, M, N, K)

__global__ void k(const float* x, const float* weight, float* out, int m, int n, int depth) {
    __shared__ float left[2][16][17], right[2][16][17];
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    const int other = blockIdx.x * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int first = 0; first < depth; first += 16) {
        const int k = first + threadIdx.x;
        const int turn = first / 16 % 2;
        left[turn][threadIdx.y][threadIdx.x] = row < m && k < depth ? x[row * (long long)depth + k] : 0.0f;
        right[turn][threadIdx.y][threadIdx.x] = other < n && k < depth ? weight[other * (long long)depth + k] : 0.0f;
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += left[turn][threadIdx.y][j] * right[turn][threadIdx.x][j];
    }
    if (row < m && column < n) out[row * (long long)n + column] = sum;
}
