// Attack: Short rows leave lanes without work, which end before the warp's maximum: what a lane that has ended gives is
//   whatever its register holds.
// Caught: mismatch
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const int lane = threadIdx.x;
    if (lane >= n) return;
    float sum = 0.0f;
    for (int i = lane; i < n; i += 32) sum += x[blockIdx.x * (long long)n + i];
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_down_sync(0xffffffffu, sum, offset);
        if (lane + offset < 32) sum += other;
    }
    if (lane == 0) out[blockIdx.x] = sum;
}
