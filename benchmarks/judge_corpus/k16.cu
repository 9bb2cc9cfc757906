// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: rotate<<<dim3(T, B), dim3(16, H)>>>(x, cosine, sine, out, T, H)
// where: H <= 64

__global__ void rotate(const float* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine,
                       float* __restrict__ out, int T, int H) {
    const int d = threadIdx.x, t = blockIdx.x;
    const size_t base = (((size_t)blockIdx.y * T + t) * H + threadIdx.y) * 32;
    const float first = x[base + d], second = x[base + 16 + d];
    out[base + d] = first * cosine[t * 32 + d] - second * sine[t * 32 + d];
    out[base + 16 + d] = second * cosine[t * 32 + 16 + d] + first * sine[t * 32 + 16 + d];
}
