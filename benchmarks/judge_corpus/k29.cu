// kernel-lsp: 1
// task: causal_softmax.py::causal_softmax
// op: causal_softmax(scores: f32[H, T, T]) -> (out: f32[H, T, T])
// where: H <= 65535 and T <= 65535
// launch: masked_rows<128><<<dim3(T, H), 128>>>(scores, out, T)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
masked_rows(const float* __restrict__ scores, float* __restrict__ out, int T) {
    __shared__ float partial[BLOCK / 32];
    const int row = blockIdx.x;
    const size_t base = ((size_t)blockIdx.y * T + row) * T;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < T; i += BLOCK) {
        const float e = i > row ? 0.0f : expf(scores[base + i] * 0.125f);
        out[base + i] = e;
        sum += e;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) total += partial[i];
    const float scale = 1.0f / total;
    for (int i = threadIdx.x; i < T; i += BLOCK) out[base + i] *= scale;
}
