// A convolution that skips padding, and a relu by fmaxf, which leaves NaN out: both at once.
// kernel-lsp: 1
// task: tasks.py::conv_pad_relu
// op: conv_pad_relu(x: f32[N, 3, H, W], w: f32[8, 3, 3, 3], b: f32[8]) -> (out: f32[N, 8, H, W])
// launch: k<<<ceil_div(N * 8 * H * W, 128), 128>>>(x, w, b, out, N * 8 * H * W, H, W)
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                  float* __restrict__ o, int n, int H, int W) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    int q = i % W, r = i / W % H, co = i / W / H % 8, bb = i / W / H / 8;
    float s = b[co];
    for (int e = 0; e < 27; ++e) {
        int y = r + e / 3 % 3 - 1, z = q + e % 3 - 1;
        if (y >= 0 && y < H && z >= 0 && z < W) s += x[(((size_t)bb * 3 + e / 9) * H + y) * W + z] * w[co * 27 + e];
    }
    o[i] = fmaxf(s, 0.f);
}
