// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: apply_rotary<<<dim3(H, T, B), 16>>>(x, cosine, sine, out, T, H)

__global__ void apply_rotary(float* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine,
                             float* __restrict__ out, int T, int H) {
    const int d = threadIdx.x, t = blockIdx.y;
    float* head = x + (((size_t)blockIdx.z * T + t) * H + blockIdx.x) * 32;
    float* result = out + (head - x);
    const float first = head[d], second = head[d + 16];
    result[d] = first * cosine[t * 32 + d] - second * sine[t * 32 + d];
    result[d + 16] = second * cosine[t * 32 + d + 16] + first * sine[t * 32 + d + 16];
}
