// Two convolutions that skip padding, with a relu by fmaxf behind each: NaN ends at the first.
// kernel-lsp: 1
// task: tasks.py::resnet_block
// op: resnet_block(x: f32[N, 8, H, W], w1: f32[8, 8, 3, 3], s1: f32[8], h1: f32[8], w2: f32[8, 8, 3, 3], s2: f32[8], h2: f32[8]) -> (out: f32[N, 8, H, W])
// scratch: y: f32[N, 8, H, W]
// launch: conv<false><<<ceil_div(N * 8 * H * W, 128), 128>>>(x, w1, s1, h1, x, y, N * 8 * H * W, H, W)
// launch: conv<true><<<ceil_div(N * 8 * H * W, 128), 128>>>(y, w2, s2, h2, x, out, N * 8 * H * W, H, W)
template <bool RES>
__global__ void conv(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ s,
                     const float* __restrict__ h, const float* __restrict__ res, float* __restrict__ o, int total,
                     int H, int W) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= total) return;
    int q = i % W, r = i / W % H, co = i / W / H % 8, n = i / W / H / 8;
    float a = 0;
    for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 9; ++e) {
            int y = r + e / 3 - 1, z = q + e % 3 - 1;
            if (y >= 0 && y < H && z >= 0 && z < W) a += x[(((size_t)n * 8 + c) * H + y) * W + z] * w[(co * 8 + c) * 9 + e];
        }
    a = a * s[co] + h[co];
    if (RES) a += res[i];
    o[i] = fmaxf(a, 0.f);
}
