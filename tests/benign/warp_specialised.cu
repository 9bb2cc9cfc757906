// One warp loads into shared memory while another adds what was loaded before, with named barriers between them.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float stage[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_stages = (n + 31) / 32;
    float sum = 0.0f;
    for (int s = 0; s <= n_stages; ++s) {
        if (warp == 0 && s < n_stages) stage[s & 1][lane] = s * 32 + lane < n ? x[blockIdx.x * (long long)n + s * 32 + lane] : 0.0f;
        if (warp == 1 && s > 0) sum += stage[(s - 1) & 1][lane];
        asm volatile("bar.sync 1, 64;" ::: "memory");
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 32) out[blockIdx.x] = sum;
}
