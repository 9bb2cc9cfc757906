// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// launch: row_pairs<<<ceil_div(B, 2), 128>>>(x, weight, out, B, D)

__global__ void __launch_bounds__(128)
row_pairs(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int B, int D) {
    __shared__ float sums[2][2];
    const int team = threadIdx.x / 64, t = threadIdx.x % 64;
    const int row = blockIdx.x * 2 + team;
    if (row >= B) return;
    const float* from = x + (size_t)row * D;
    float sum = 0.0f;
    for (int i = t; i < D; i += 64) sum = fmaf(from[i], from[i], sum);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (t % 32 == 0) sums[team][t / 32] = sum;
    asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory");
    const float scale = rsqrtf((sums[team][0] + sums[team][1]) / D + 1e-6f);
    for (int i = t; i < D; i += 64) out[(size_t)row * D + i] = from[i] * scale * weight[i];
}
