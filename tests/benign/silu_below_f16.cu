// Far below f16's smallest number the result is zero, as it is rounded.
// kernel-lsp: 1
// task: tasks.py::conv_f16
// op: conv_f16(x: f16[N, C, H, W], w: f16[K, C, 3, 3], b: f16[K]) -> (out: f16[N, K, H, W])
// launch: cv<<<ceil_div(N * K * H * W, 128), 128>>>(x, w, b, out, N * K * H * W, C, H, W, K)

#include <cuda_fp16.h>
__global__ void cv(const __half* __restrict__ x, const __half* __restrict__ w, const __half* __restrict__ b, __half* __restrict__ out, int n, int C, int H, int W, int K) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    const int ox = i % W, oy = i / W % H, k = i / (W * H) % K, bn = i / (W * H) / K;
    float acc = 0.f;
    for (int c = 0; c < C; ++c) {
        float part = 0.f;
        for (int r = 0; r < 3; ++r)
            for (int s = 0; s < 3; ++s) {
                const int y = oy + r - 1, xx = ox + s - 1;
                if (y < 0 || y >= H || xx < 0 || xx >= W) continue;
                part += __half2float(x[(((size_t)bn * C + c) * H + y) * W + xx]) * __half2float(w[((k * C + c) * 3 + r) * 3 + s]);
            }
        acc += part;
    }
    acc += __half2float(b[k]);
    out[i] = __float2half(acc / (1.f + __expf(-acc)));
}
