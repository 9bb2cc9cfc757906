// Rows in 8 bits by their largest magnitude: PyTorch divides in two steps, and this in one, so that of a million values
// one or two lie on the other side of a middle between two whole numbers.
// kernel-lsp: 1
// task: tasks.py::rows_in_bytes
// op: rows_in_bytes(x: f32[B, D]) -> (q: i8[B, D])
// launch: quantize<<<B, 128>>>(x, q, D)

__global__ void quantize(const float* __restrict__ x, signed char* __restrict__ q, int D) {
    __shared__ float of_warp[4];
    x += (size_t)blockIdx.x * D;
    q += (size_t)blockIdx.x * D;
    float most = 0.0f;
    for (int i = threadIdx.x; i < D; i += blockDim.x) {
        const float size = fabsf(x[i]);
        most = size > most || size != size ? size : most;
    }
    for (int offset = 16; offset; offset >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    most = fmaxf(fmaxf(of_warp[0], of_warp[1]), fmaxf(of_warp[2], of_warp[3]));
    const float scale = 127.0f / fmaxf(most, 1e-5f);
    for (int i = threadIdx.x; i < D; i += blockDim.x) q[i] = (signed char)max(-128, min(127, __float2int_rn(x[i] * scale)));
}
