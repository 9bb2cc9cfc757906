// kernel-lsp: 1
// task: slow_transpose.py::slow_transpose
// op: slow_transpose(x: f32[R, C]) -> (out: f32[C, R])
// where: R % 32 == 0
// where: C % 32 == 0
// scratch: copied: f32[R, C]
// launch: scale<256><<<ceil_div(R * C, 256), 256>>>(x, copied, R * C)
// launch: transpose_tiles<<<dim3(ceil_div(C, 32), ceil_div(R, 32)), dim3(32, 8)>>>(copied, out, R, C)

// Slow on purpose, in two ways that counters show: `scale` writes with a stride, and `transpose_tiles` reads its shared
// tile by columns without padding, so that all lanes of a warp meet in one bank.

template <int BLOCK>
__global__ void scale(const float* __restrict__ x,  // (n)
                      float* __restrict__ out,      // (n)
                      int n) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const int rows = n / 32;
    const float value = x[(i % rows) * 32 + i / rows];
    out[(i % rows) * 32 + i / rows] = 2.0f * value;
}

__global__ void transpose_tiles(const float* __restrict__ x,  // (R, C)
                                float* __restrict__ out,      // (C, R)
                                int R, int C) {
    __shared__ float tile[32][32];
    const int row = blockIdx.y * 32, column = blockIdx.x * 32;
    for (int j = threadIdx.y; j < 32; j += 8) tile[j][threadIdx.x] = x[(row + j) * C + column + threadIdx.x];
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8) out[(column + j) * R + row + threadIdx.x] = tile[threadIdx.x][j];
}
