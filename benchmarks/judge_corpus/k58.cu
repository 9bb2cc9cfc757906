// kernel-lsp: 1
// task: group_norm_silu.py::group_norm_silu
// op: group_norm_silu(x: f32[N, 16, L], weight: f32[16], bias: f32[16]) -> (out: f32[N, 16, L])
// where: N <= 65535
// scratch: moments: f64[N, 4, 2]
// fill: moments = 0
// launch: collect<<<dim3(16, N), 64>>>(x, moments, L)
// launch: apply<<<dim3(ceil_div(L, 64), 16, N), 64>>>(x, weight, bias, moments, out, L)

__global__ void __launch_bounds__(64) collect(const float* __restrict__ x, double* __restrict__ moments, int L) {
    const float* channel = x + ((size_t)blockIdx.y * 16 + blockIdx.x) * L;
    double sum = 0.0, squares = 0.0;
    for (int i = threadIdx.x; i < L; i += 64) {
        const double v = channel[i];
        sum += v;
        squares += v * v;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
        squares += __shfl_down_sync(0xffffffffu, squares, offset);
    }
    if (threadIdx.x % 32 != 0) return;
    double* group = moments + (blockIdx.y * 4 + blockIdx.x / 4) * 2;
    atomicAdd(group, sum);
    atomicAdd(group + 1, squares);
}

__global__ void __launch_bounds__(64)
apply(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
      const double* __restrict__ moments, float* __restrict__ out, int L) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= L) return;
    const int channel = blockIdx.y;
    const double* group = moments + (blockIdx.z * 4 + channel / 4) * 2;
    const double mean = group[0] / (4.0 * L);
    const double variance = group[1] / (4.0 * L) - mean * mean;
    const size_t at = ((size_t)blockIdx.z * 16 + channel) * L + i;
    const float normal = (float)((x[at] - mean) * rsqrt((variance < 0.0 ? 0.0 : variance) + 1e-5));
    const float v = normal * weight[channel] + bias[channel];
    out[at] = v / (1.0f + expf(-v));
}
