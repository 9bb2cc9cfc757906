// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// launch: group_rows<<<dim3(4, N), 128>>>(x, weight, bias, out, L)

__global__ void __launch_bounds__(128)
group_rows(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ out, int L) {
    __shared__ float warps[2][4];
    const int n = 4 * L, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t base = ((size_t)blockIdx.y * 4 + blockIdx.x) * n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[base + i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) warps[0][warp] = sum;
    __syncthreads();
    const float mean = (warps[0][0] + warps[0][1] + warps[0][2] + warps[0][3]) / n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) {
        const float d = x[base + i] - mean;
        squares = fmaf(d, d, squares);
    }
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (lane == 0) warps[1][warp] = squares;
    __syncthreads();
    const float scale = rsqrtf((warps[1][0] + warps[1][1] + warps[1][2] + warps[1][3]) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 128) {
        const int channel = i / L;
        const float v = fmaf((x[base + i] - mean) * scale, weight[channel], bias[channel]);
        out[base + i] = v / (1.0f + expf(-v));
    }
}
