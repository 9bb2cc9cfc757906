// A tile in shared memory, padded by one column.
// kernel-lsp: 1
// task: tasks.py::transpose
// op: transpose(x: f32[B, N]) -> (out: f32[N, B])
// launch: k<<<dim3(ceil_div(N, 32), ceil_div(B, 32)), dim3(32, 8)>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int rows, int columns) {
    __shared__ float tile[32][33];
    for (int j = threadIdx.y; j < 32; j += 8) {
        const int r = blockIdx.y * 32 + j, c = blockIdx.x * 32 + threadIdx.x;
        if (r < rows && c < columns) tile[j][threadIdx.x] = x[r * columns + c];
    }
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8) {
        const int c = blockIdx.x * 32 + j, r = blockIdx.y * 32 + threadIdx.x;
        if (r < rows && c < columns) out[c * rows + r] = tile[threadIdx.x][j];
    }
}
