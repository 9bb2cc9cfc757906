// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: rotate_pairs<<<ceil_div(B * T * H * 16, 128), 128>>>(x, cosine, sine, out, B * T * H * 16, T, H)

__global__ void __launch_bounds__(128)
rotate_pairs(const float2* __restrict__ x, const float2* __restrict__ cosine, const float2* __restrict__ sine,
             float2* __restrict__ out, int n_pairs, int T, int H) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n_pairs) return;
    const int pair = i % 16, t = i / (16 * H) % T;
    const float2 v = x[i], c = cosine[t * 16 + pair], s = sine[t * 16 + pair];
    out[i] = make_float2(v.x * c.x - v.y * s.x, v.y * c.y + v.x * s.y);
}
