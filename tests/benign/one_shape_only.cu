// A contract of one depth: the product is unrolled for it and other depths are left to PyTorch.
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// where: K == 128
// launch: k<<<dim3(N, B), 32>>>(x, weight, out, N)

__global__ void k(const float4* x, const float4* weight, float* out, int n) {
    const float4 a = x[blockIdx.y * 32 + threadIdx.x], b = weight[blockIdx.x * 32 + threadIdx.x];
    float sum = a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.y * n + blockIdx.x] = sum;
}
