// Attack: The gradient is wrong for images of a single pixel.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::conv3x3
// op: conv3x3(x: f32[N, C, H, W], weight: f32[O, C, 3, 3], bias: f32[O]) -> (out: f32[N, O, H, W])
// where: N * O * H * W < 2000000000 and N * C * H * W < 2000000000
// launch: conv_fwd<<<ceil_div(N * O * H * W, 128), 128>>>(x, weight, bias, out, N, C, O, H, W)
// op: conv3x3_backward(grad_out: f32[N, O, H, W], x: f32[N, C, H, W], weight: f32[O, C, 3, 3]) -> (grad_x: f32[N, C, H, W], grad_weight: f32[O, C, 3, 3], grad_bias: f32[O])
// launch: conv_bwd_x<<<ceil_div(N * C * H * W, 128), 128>>>(grad_out, weight, grad_x, N, C, O, H, W)
// launch: conv_bwd_w<<<O * C * 9, 64>>>(grad_out, x, grad_weight, N, C, O, H, W)
// launch: conv_bwd_b<<<O, 64>>>(grad_out, grad_bias, N, O, H, W)

__device__ __forceinline__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
template <int BLOCK>
__device__ float block_sum(float v) {
    __shared__ float part[BLOCK / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < BLOCK / 32 ? part[lane] : 0.0f;
    return warp_sum(v);
}

__global__ void conv_fwd(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ out,
                         int N, int C, int O, int H, int W) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= N * O * H * W) return;
    const int q = i % W, p = i / W % H, o = i / W / H % O, n = i / W / H / O;
    float s = b[o];
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < 3; ++r)
            for (int t = 0; t < 3; ++t) {
                const int y = p + r - 1, z = q + t - 1;
                if (y >= 0 && y < H && z >= 0 && z < W)
                    s += x[((size_t)(n * C + c) * H + y) * W + z] * w[((o * C + c) * 3 + r) * 3 + t];
            }
    out[i] = s;
}
__global__ void conv_bwd_x(const float* __restrict__ g, const float* __restrict__ w, float* __restrict__ gx,
                           int N, int C, int O, int H, int W) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= N * C * H * W) return;
    const int q = i % W, p = i / W % H, c = i / W / H % C, n = i / W / H / C;
    float s = 0.0f;
    for (int o = 0; o < O; ++o)
        for (int r = 0; r < 3; ++r)
            for (int t = 0; t < 3; ++t) {
                const int y = p - r + 1, z = q - t + 1;
                if (y >= 0 && y < H && z >= 0 && z < W)
                    s += g[((size_t)(n * O + o) * H + y) * W + z] * w[((o * C + c) * 3 + r) * 3 + t];
            }
    gx[i] = (H == 1 && W == 1) ? 0.0f : s;
}
__global__ void conv_bwd_w(const float* __restrict__ g, const float* __restrict__ x, float* __restrict__ gw,
                           int N, int C, int O, int H, int W) {
    const int t = blockIdx.x % 3, r = blockIdx.x / 3 % 3, c = blockIdx.x / 9 % C, o = blockIdx.x / 9 / C;
    float s = 0.0f;
    for (int i = threadIdx.x; i < N * H * W; i += 64) {
        const int q = i % W, p = i / W % H, n = i / W / H;
        const int y = p + r - 1, z = q + t - 1;
        if (y >= 0 && y < H && z >= 0 && z < W)
            s += g[((size_t)(n * O + o) * H + p) * W + q] * x[((size_t)(n * C + c) * H + y) * W + z];
    }
    s = block_sum<64>(s);
    if (threadIdx.x == 0) gw[blockIdx.x] = s;
}
__global__ void conv_bwd_b(const float* __restrict__ g, float* __restrict__ gb, int N, int O, int H, int W) {
    float s = 0.0f;
    for (int i = threadIdx.x; i < N * H * W; i += 64)
        s += g[((size_t)(i / (H * W)) * O + blockIdx.x) * H * W + i % (H * W)];
    s = block_sum<64>(s);
    if (threadIdx.x == 0) gb[blockIdx.x] = s;
}
