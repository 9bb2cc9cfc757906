// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: rotate_quads<<<ceil_div(B * T * H, 32), dim3(4, 32)>>>(x, cosine, sine, out, B * T * H, T, H)

constexpr int WIDTH = 8, HALF = WIDTH / 2;

template <typename Index>
__device__ __forceinline__ Index wrapped(Index i, Index n) {
    return i - i / n * n;
}

__global__ void __launch_bounds__(128)
rotate_quads(const float4* __restrict__ x, const float4* __restrict__ cosine, const float4* __restrict__ sine,
             float4* __restrict__ out, int n_heads, int T, int H) {
    const size_t head = (size_t)blockIdx.x * 32 + threadIdx.y;
    if (head >= n_heads) return;
    const size_t low = wrapped(head / H, T) * WIDTH + threadIdx.x, high = low + HALF;
    const float4* from = x + head * WIDTH + threadIdx.x;
    float4* to = out + head * WIDTH + threadIdx.x;
    const float4 a = from[0], b = from[HALF];
    const float4 c0 = cosine[low], s0 = sine[low], c1 = cosine[high], s1 = sine[high];
    to[0] =
        make_float4(a.x * c0.x - b.x * s0.x, a.y * c0.y - b.y * s0.y, a.z * c0.z - b.z * s0.z, a.w * c0.w - b.w * s0.w);
    to[HALF] =
        make_float4(b.x * c1.x + a.x * s1.x, b.y * c1.y + a.y * s1.y, b.z * c1.z + a.z * s1.z, b.w * c1.w + a.w * s1.w);
}
