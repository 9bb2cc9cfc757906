// A maximum of the numbers of a row, without its NaNs.
// kernel-lsp: 1
// task: tasks.py::largest
// op: largest(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[4];
    const float* row = x + (size_t)blockIdx.x * n;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 128) top = row[i] > top ? row[i] : top;
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
}
