// kernel-lsp: 1
// task: add_layer_norm.py::add_layer_norm
// op: add_layer_norm(x: f32[B, D], residual: f32[B, D], weight: f32[D], bias: f32[D]) -> (out: f32[B, D])
// launch: norm_rows<<<ceil_div(B, 4), dim3(32, 4)>>>(x, residual, weight, bias, out, B, D)

struct Moments {
    float mean;
    float m2;
    float count;
};

__device__ __forceinline__ Moments combine(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float delta = b.mean - a.mean;
    const float share = b.count / count;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share, count};
}

__global__ void __launch_bounds__(128)
norm_rows(const float* __restrict__ x, const float* __restrict__ residual, const float* __restrict__ weight,
          const float* __restrict__ bias, float* __restrict__ out, int B, int D) {
    const int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= B) return;
    const size_t base = (size_t)row * D;
    Moments mine = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < D; i += 32) {
        const float v = x[base + i] + residual[base + i];
        mine.count += 1.0f;
        const float delta = v - mine.mean;
        mine.mean += delta / mine.count;
        mine.m2 = fmaf(delta, v - mine.mean, mine.m2);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        Moments other;
        other.mean = __shfl_xor_sync(0xffffffffu, mine.mean, offset);
        other.m2 = __shfl_xor_sync(0xffffffffu, mine.m2, offset);
        other.count = __shfl_xor_sync(0xffffffffu, mine.count, offset);
        mine = (threadIdx.x & offset) == 0 ? combine(mine, other) : combine(other, mine);
    }
    const float scale = rsqrtf(mine.m2 / D + 1e-5f);
    for (int i = threadIdx.x; i < D; i += 32) {
        const float v = x[base + i] + residual[base + i];
        out[base + i] = (v - mine.mean) * scale * weight[i] + bias[i];
    }
}
