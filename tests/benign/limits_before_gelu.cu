// Limits by fmaxf and fminf in another order than PyTorch's: of NaN the other limit is left, and gelu follows.
// kernel-lsp: 1
// task: tasks.py::gemm_scale_hardtanh_gelu
// op: gemm_scale_hardtanh_gelu(x: f32[M, K], w: f32[N, K], b: f32[N]) -> (out: f32[M, N])
// where: M <= 65535 * 16
// launch: k<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(x, w, b, out, M, N, K)
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                  float* __restrict__ o, int M, int N, int K) {
    int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
    if (m >= M || n >= N) return;
    float s = 0;
    for (int k = 0; k < K; ++k) s += x[(size_t)m * K + k] * w[(size_t)n * K + k];
    s = (s + b[n]) * 0.5f;
    s = fmaxf(-2.f, fminf(2.f, s));
    o[(size_t)m * N + n] = 0.5f * s * (1.f + erff(s * 0.70710678118654752f));
}
