// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: scan_block<128><<<B, 128>>>(x, out, D)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) scan_block(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ float values[BLOCK];
    const size_t base = (size_t)blockIdx.x * D;
    const int t = threadIdx.x;
    float carry = 0.0f;
    for (int start = 0; start < D; start += BLOCK) {
        values[t] = start + t < D ? x[base + start + t] : 0.0f;
        __syncthreads();
        for (int offset = 1; offset < BLOCK; offset *= 2) {
            if (t >= offset) values[t] += values[t - offset];
            __syncthreads();
        }
        if (start + t < D) out[base + start + t] = carry + values[t];
        carry += values[BLOCK - 1];
        __syncthreads();
    }
}
