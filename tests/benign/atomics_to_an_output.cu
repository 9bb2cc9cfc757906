// Every warp adds its part of a row with an atomic operation, into an output that a fill has set to zero.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// fill: out = 0
// launch: k<<<dim3(ceil_div(N, 128), B), 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    float v = i < n ? x[blockIdx.y * (long long)n + i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(out + blockIdx.y, v);
}
