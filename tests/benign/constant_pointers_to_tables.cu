// Pointers to constant tables, kept on the stack and chosen at run time.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__constant__ float twos[4] = {2.0f, 2.0f, 2.0f, 2.0f};
__device__ const float others[4] = {2.0f, 2.0f, 2.0f, 2.0f};

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float* tables[2] = {twos, others};
    if (i < n) out[i] = x[i] * tables[i & 1][i & 3];
}
