// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// launch: normalize_group<128><<<dim3(4, N), 128>>>(x, weight, bias, out, L)

constexpr int CHANNELS = 16, PER_GROUP = 4;

template <int BLOCK>
__device__ float sum_of_block(float v) {
    __shared__ float warps[BLOCK / 32];
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) v += warps[i];
    return v;
}

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
normalize_group(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                float* __restrict__ out, int L) {
    const int n = PER_GROUP * L;
    const size_t base = ((size_t)blockIdx.y * CHANNELS + blockIdx.x * PER_GROUP) * L;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += BLOCK) sum += x[base + i];
    const float mean = sum_of_block<BLOCK>(sum) / n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += BLOCK) squares += (x[base + i] - mean) * (x[base + i] - mean);
    const float scale = rsqrtf(sum_of_block<BLOCK>(squares) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += BLOCK) {
        const int channel = blockIdx.x * PER_GROUP + i / L;
        const float v = (x[base + i] - mean) * scale * weight[channel] + bias[channel];
        out[base + i] = v / (1.0f + expf(-v));
    }
}
