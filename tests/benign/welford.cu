// Mean and variance in one pass by Welford's update, merged across the warp.
// kernel-lsp: 1
// task: tasks.py::layer_norm
// op: layer_norm(x: f32[B, N], weight: f32[N], bias: f32[N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, weight, bias, out, N)

__global__ void k(const float* x, const float* weight, const float* bias, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float count = 0.0f, mean = 0.0f, spread = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        count += 1.0f;
        const float before = row[i] - mean;
        mean += before / count;
        spread += before * (row[i] - mean);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_count = __shfl_xor_sync(0xffffffffu, count, offset);
        const float other_mean = __shfl_xor_sync(0xffffffffu, mean, offset);
        const float other_spread = __shfl_xor_sync(0xffffffffu, spread, offset);
        const float both = count + other_count;
        if (both == 0.0f) continue;
        const float apart = other_mean - mean, share = other_count / both;
        spread += other_spread + apart * apart * count * share;
        mean = 0.5f * (count - other_count) == 0.0f ? 0.5f * (mean + other_mean) : mean + apart * share;
        count = both;
    }
    mean = __shfl_sync(0xffffffffu, mean, 0);
    spread = __shfl_sync(0xffffffffu, spread, 0);
    const float scale = rsqrtf(spread / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32)
        out[blockIdx.x * (long long)n + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
