// Attack: A tile is indexed past its end, in the next shared array, of which nothing is used yet: right by the luck of how
//   a compiler lays them out.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 64), 64>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float tile[48];
    __shared__ float rest[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    const float value = tile[63 - threadIdx.x];
    __syncthreads();
    rest[63 - threadIdx.x] = 2.0f * value;
    __syncthreads();
    if (i < n) out[i] = rest[threadIdx.x];
}
