// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: quad_scan<<<B, 32>>>(x, out, D)

__global__ void __launch_bounds__(32) quad_scan(const float* __restrict__ x, float* __restrict__ out, int D) {
    const size_t base = (size_t)blockIdx.x * D;
    const int lane = threadIdx.x;
    float carry = 0.0f;
    for (int start = 0; start < D; start += 128) {
        const int at = start + 4 * lane;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[j] = at + j < D ? x[base + at + j] : 0.0f;
            if (j > 0) v[j] += v[j - 1];
        }
        float total = v[3];
        for (int offset = 1; offset < 32; offset *= 2) {
            const float left = __shfl_up_sync(0xffffffffu, total, offset);
            if (lane >= offset) total += left;
        }
        const float before = __shfl_up_sync(0xffffffffu, total, 1);
        const float shift = lane == 0 ? carry : carry + before;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (at + j < D) out[base + at + j] = shift + v[j];
        carry += __shfl_sync(0xffffffffu, total, 31);
    }
}
