// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: block_scan<128><<<B, 128>>>(x, out, D)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) block_scan(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ float totals[BLOCK / warpSize];
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    const size_t base = (size_t)blockIdx.x * D;
    float carry = 0.0f;
    for (int start = 0; start < D; start += BLOCK) {
        const int i = start + threadIdx.x;
        float v = i < D ? x[base + i] : 0.0f;
        for (int offset = 1; offset < warpSize; offset *= 2) {
            const float left = __shfl_up_sync(0xffffffffu, v, offset);
            if (lane >= offset) v += left;
        }
        if (lane == warpSize - 1) totals[warp] = v;
        __syncthreads();
        float before = carry;
        for (int w = 0; w < BLOCK / warpSize; ++w) {
            if (w < warp) before += totals[w];
            carry += totals[w];
        }
        if (i < D) out[base + i] = before + v;
        __syncthreads();
    }
}
