// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: warp_scan<<<ceil_div(B, 4), 128>>>(x, out, B, D)

__global__ void __launch_bounds__(128) warp_scan(const float* __restrict__ x, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= B) return;
    const float* from = x + (size_t)row * D;
    float* to = out + (size_t)row * D;
    float carry = 0.0f;
    const int rounds = (D + 31) / 32;
    for (int r = 0; r < rounds; ++r) {
        const int i = r * 32 + lane;
        float v = from[min(i, D - 1)];
        for (int offset = 1; offset < 32; offset <<= 1) {
            const float left = __shfl_up_sync(0xffffffffu, v, offset);
            if (lane >= offset) v += left;
        }
        v += carry;
        if (i < D) to[i] = v;
        carry = __shfl_sync(0xffffffffu, v, 31);
    }
}
