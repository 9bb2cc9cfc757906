// A maximum that begins with -1e30, which is what is left of a window of nothing but NaN.
// kernel-lsp: 1
// task: tasks.py::conv_sub_hs_pool_mish
// op: conv_sub_hs_pool_mish(x: f32[N, 3, H, W], w: f32[8, 3, 3, 3], b: f32[8]) -> (out: f32[N, 8, (H - 2) // 2, (W - 2) // 2])
// where: H >= 4 and W >= 4
// launch: k<<<ceil_div(N * 8 * ((H - 2) // 2) * ((W - 2) // 2), 128), 128>>>(x, w, b, out, N * 8 * ((H - 2) // 2) * ((W - 2) // 2), H, W)
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                  float* __restrict__ o, int total, int H, int W) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= total) return;
    int PW = (W - 2) / 2, PH = (H - 2) / 2, pw = i % PW, ph = i / PW % PH, co = i / PW / PH % 8, n = i / PW / PH / 8;
    float m = -1e30f;
    for (int y = 0; y < 2; ++y) for (int z = 0; z < 2; ++z) {
        float s = b[co];
        for (int c = 0; c < 3; ++c) for (int a = 0; a < 3; ++a) for (int d = 0; d < 3; ++d)
            s += x[(((size_t)n * 3 + c) * H + 2 * ph + y + a) * W + 2 * pw + z + d] * w[co * 27 + c * 9 + a * 3 + d];
        s -= 0.5f;
        m = fmaxf(m, s * fminf(fmaxf(s + 3.f, 0.f), 6.f) / 6.f);   // hardswish >= -0.375
    }
    float sp = m > 20.f ? m : log1pf(expf(m));
    o[i] = m * tanhf(sp);
}
