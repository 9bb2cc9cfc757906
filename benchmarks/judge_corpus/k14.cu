// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// launch: group_silu<<<dim3(4, N), 128>>>(x, weight, bias, out, 16, 4, L)

__global__ void __launch_bounds__(128)
group_silu(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ out, const int channels, const int groups, const int L) {
    constexpr int per_group = channels / groups;
    __shared__ float sums[4], squares[4];
    const int n = per_group * L, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t base = ((size_t)blockIdx.y * groups + blockIdx.x) * n;
    float sum = 0.0f, square = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[base + i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    const float mean = (sums[0] + sums[1] + sums[2] + sums[3]) / n;
    for (int i = threadIdx.x; i < n; i += 128) square += (x[base + i] - mean) * (x[base + i] - mean);
    for (int offset = 16; offset > 0; offset /= 2) square += __shfl_xor_sync(0xffffffffu, square, offset);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    const float scale = rsqrtf((squares[0] + squares[1] + squares[2] + squares[3]) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 128) {
        const int channel = blockIdx.x * per_group + i / L;
        const float v = (x[base + i] - mean) * scale * weight[channel] + bias[channel];
        out[base + i] = v / (1.0f + expf(-v));
    }
}
