// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// launch[L <= 32]: group_pass<<<dim3(4, N), 128>>>(x, weight, bias, out, L)
// launch[L > 32]: group_pass<<<dim3(4, N), 256>>>(x, weight, bias, out, L)

constexpr int MAX_WARPS = 4;

__device__ float reduce(float v, float* warps) {
    const int lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    __syncthreads();
    if (lane == 0) warps[threadIdx.x >> 5] = v;
    __syncthreads();
    float total = lane < n_warps ? warps[lane] : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) total += __shfl_xor_sync(0xffffffffu, total, offset);
    return total;
}

__global__ void __launch_bounds__(256)
group_pass(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ out, int L) {
    __shared__ float warps[MAX_WARPS];
    const int n = 4 * L;
    const size_t base = ((size_t)blockIdx.y * 4 + blockIdx.x) * n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[base + i];
    const float mean = reduce(sum, warps) / n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += (x[base + i] - mean) * (x[base + i] - mean);
    const float scale = rsqrtf(reduce(squares, warps) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int channel = 4 * blockIdx.x + i / L;
        const float v = (x[base + i] - mean) * scale * weight[channel] + bias[channel];
        out[base + i] = v / (1.0f + expf(-v));
    }
}
