// bfloat16 operands, single-precision sum, one rounding.
// kernel-lsp: 1
// task: tasks.py::linear_bf16
// op: linear_bf16(x: bf16[B, K], weight: bf16[N, K]) -> (out: bf16[B, N])
// launch: k<<<dim3(ceil_div(N, 16), ceil_div(B, 16)), dim3(16, 16)>>>(x, weight, out, B, N, K)

#include <cuda_bf16.h>

__global__ void k(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out, int rows, int n, int depth) {
    __shared__ float a[16][17], b[16][17];
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int base = 0; base < depth; base += 16) {
        const int i = base + threadIdx.x, other = blockIdx.x * 16 + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < rows && i < depth ? __bfloat162float(x[row * depth + i]) : 0.0f;
        b[threadIdx.y][threadIdx.x] = other < n && i < depth ? __bfloat162float(weight[other * depth + i]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 16; ++j)
            if (base + j < depth) sum = fmaf(a[threadIdx.y][j], b[threadIdx.x][j], sum);
        __syncthreads();
    }
    if (row < rows && column < n) out[row * n + column] = __float2bfloat16(sum);
}
