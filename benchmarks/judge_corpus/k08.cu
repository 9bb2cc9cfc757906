// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: rotate_warps<<<ceil_div(B * T * H, 8), 256>>>(x, cosine, sine, out, B * T * H, T, H)

__global__ void __launch_bounds__(256)
rotate_warps(const float* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine,
             float* __restrict__ out, int n_heads, int T, int H) {
    const int head = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (head >= n_heads) return;
    const int t = head / H % T;
    const float v = x[(size_t)head * 32 + lane];
    const float other = __shfl_xor_sync(0xffffffffu, v, 16);
    const float rotated = lane & 16 ? other : -other;
    out[(size_t)head * 32 + lane] = v * cosine[t * 32 + lane] + rotated * sine[t * 32 + lane];
}
