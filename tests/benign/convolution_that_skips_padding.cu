// A direct convolution that never multiplies with its padding: an infinite weight meets no zero there.
// kernel-lsp: 1
// task: tasks.py::strided_conv1d
// op: strided_conv1d(x: f32[N, 8, L], w: f32[16, 8, 5], b: f32[16]) -> (out: f32[N, 16, (L - 1) // 2 + 1])
// launch: direct<<<dim3(ceil_div((L - 1) // 2 + 1, 128), 16, N), 128>>>(x, w, b, out, L, (L - 1) // 2 + 1)
// where: N <= 65535

__global__ void direct(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ out, int L, int LO) {
    __shared__ float ws[8 * 5];
    const int oc = blockIdx.y;
    if (threadIdx.x < 40) ws[threadIdx.x] = w[oc * 40 + threadIdx.x];
    __syncthreads();
    const int o = blockIdx.x * blockDim.x + threadIdx.x;
    if (o >= LO) return;
    float acc = b[oc];
    const float* xn = x + (size_t)blockIdx.z * 8 * L;
    for (int c = 0; c < 8; ++c) {
#pragma unroll
        for (int k = 0; k < 5; ++k) {
            int i = 2 * o - 2 + k;
            if (i >= 0 && i < L) acc = fmaf(xn[c * L + i], ws[c * 5 + k], acc);
        }
    }
    out[((size_t)blockIdx.z * 16 + oc) * LO + o] = acc;
}
