// A warp per row, found by the number of the thread in the grid, as CUDA's examples have it: 32 bits of it.
// kernel-lsp: 1
// task: tasks.py::l2_norm
// op: l2_norm(x: f32[N, D]) -> (out: f32[N, D])
// launch: l2<<<ceil_div(N, 8), 256>>>(x, out, N, D)
__global__ void l2(const float* __restrict__ x, float* __restrict__ y, int N, int D) {
    int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= N) return;
    const float* r = x + (size_t)row * D;
    float s = 0;
    for (int i = lane; i < D; i += 32) s = fmaf(r[i], r[i], s);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    float inv = 1.0f / sqrtf(s);
    for (int i = lane; i < D; i += 32) y[(size_t)row * D + i] = r[i] * inv;
}
