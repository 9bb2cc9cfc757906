// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// launch: scan_rows<128><<<B, 128>>>(x, out, D)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) scan_rows(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ float buffer[2][BLOCK];
    const size_t base = (size_t)blockIdx.x * D;
    const int t = threadIdx.x;
    float carry = 0.0f;
    for (int start = 0; start < D; start += BLOCK) {
        int at = 0;
        buffer[0][t] = start + t < D ? x[base + start + t] : 0.0f;
        for (int offset = 1; offset < BLOCK; offset *= 2) {
            __syncthreads();
            const float v = buffer[at][t];
            buffer[at ^ 1][t] = t >= offset ? v + buffer[at][t - offset] : v;
            at ^= 1;
        }
        __syncthreads();
        if (start + t < D) out[base + start + t] = carry + buffer[at][t];
        carry += buffer[at][BLOCK - 1];
        __syncthreads();
    }
}
