// kernel-lsp: 1
// task: rotary.py::rotary
// op: rotary(x: f32[B, T, H, 32], cosine: f32[T, 32], sine: f32[T, 32]) -> (out: f32[B, T, H, 32])
// where: B <= 65535 and T <= 65535
// launch: rotate_tokens<<<B * T, 128>>>(x, cosine, sine, out, H)

__global__ void __launch_bounds__(128)
rotate_tokens(const float* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine,
              float* __restrict__ out, int H) {
    __shared__ float table[2][32];
    const int token = blockIdx.x;
    if (threadIdx.x < 32) table[0][threadIdx.x] = cosine[(size_t)token * 32 + threadIdx.x];
    else if (threadIdx.x < 64) table[1][threadIdx.x - 32] = sine[(size_t)token * 32 + threadIdx.x - 32];
    __syncthreads();
    const float* heads = x + (size_t)token * H * 32;
    for (int i = threadIdx.x; i < H * 32; i += 128) {
        const int d = i & 31;
        const float rotated = d < 16 ? -heads[i + 16] : heads[i - 16];
        out[(size_t)token * H * 32 + i] = heads[i] * table[0][d] + rotated * table[1][d];
    }
}
