// A row shorter than a warp is added by shuffles under the mask of the lanes that have an element.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// where: N <= 1024
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const int lane = threadIdx.x, n_active = min(n, 32);
    if (lane >= n_active) return;
    const unsigned mask = n_active == 32 ? 0xffffffffu : (1u << n_active) - 1;
    float sum = 0.0f;
    for (int i = lane; i < n; i += 32) sum += x[blockIdx.x * (long long)n + i];
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_down_sync(mask, sum, offset);
        if (lane + offset < n_active) sum += other;
    }
    if (lane == 0) out[blockIdx.x] = sum;
}
