// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// launch: silu_groups<<<dim3(4, N), 96>>>(x, weight, bias, out, L)

__global__ void __launch_bounds__(96)
silu_groups(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
            float* __restrict__ out, int L) {
    __shared__ float part[96], part_squares[96];
    const int t = threadIdx.x, n = 4 * L;
    const size_t base = ((size_t)blockIdx.y * 16 + blockIdx.x * 4) * L;
    const float pivot = x[base];
    float sum = 0.0f, squares = 0.0f;
    for (int i = t; i < n; i += 96) {
        const float v = x[base + i] - pivot;
        sum += v;
        squares += v * v;
    }
    part[t] = sum;
    part_squares[t] = squares;
    __syncthreads();
    int active = 96;
    for (int half = (active + 1) / 2; half > 0; half = (half + 1) / 2) {
        if (t < half && t + half < active) {
            part[t] += part[t + half];
            part_squares[t] += part_squares[t + half];
        }
        active = half;
        __syncthreads();
    }
    const float mean = part[0] / n;
    const float scale = rsqrtf(fmaxf(part_squares[0] / n - mean * mean, 0.0f) + 1e-5f);
    for (int i = t; i < n; i += 96) {
        const int channel = blockIdx.x * 4 + i / L;
        const float v = (x[base + i] - pivot - mean) * scale * weight[channel] + bias[channel];
        out[base + i] = v / (1.0f + expf(-v));
    }
}
