// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// launch: normalize_rows<128><<<B, 128>>>(x, weight, out, D)

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
normalize_rows(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int D) {
    __shared__ float partial[BLOCK / 32];
    const float* row = x + (size_t)blockIdx.x * D;
    float* result = out + (size_t)blockIdx.x * D;
    const bool vectorized = ((reinterpret_cast<size_t>(row) | reinterpret_cast<size_t>(weight) |
                              reinterpret_cast<size_t>(result)) & 15) == 0;
    const int head = vectorized ? D & ~3 : 0;

    float sum = 0.0f;
    for (int i = threadIdx.x * 4; i < head; i += BLOCK * 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + i);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int i = head + threadIdx.x; i < D; i += BLOCK) sum += row[i] * row[i];

    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) total += partial[i];
    const float scale = rsqrtf(total / D + 1e-6f);

    for (int i = threadIdx.x * 4; i < head; i += BLOCK * 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + i);
        const float4 w = *reinterpret_cast<const float4*>(weight + i);
        *reinterpret_cast<float4*>(result + i) =
            make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    }
    for (int i = head + threadIdx.x; i < D; i += BLOCK) result[i] = row[i] * scale * weight[i];
}
