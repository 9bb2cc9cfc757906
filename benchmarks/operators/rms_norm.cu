// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D], eps: float) -> (out: f32[B, D])
// where: D % 4 == 0
// launch: rms_norm_rows<256><<<B, 256>>>(x, weight, out, D, eps)
// op: rms_norm_backward(grad_out: f32[B, D], x: f32[B, D], weight: f32[D], eps: float) -> (grad_x: f32[B, D],
//     grad_weight: f32[D])
// where: D % 4 == 0
// scratch: partial: f32[min(B, 264), D]
// launch: rms_norm_backward_rows<256><<<min(B, 264), 256>>>(grad_out, x, weight, grad_x, partial, B, D, eps)
// launch: sum_columns<<<ceil_div(D, 128), 128>>>(partial, grad_weight, min(B, 264), D)

// RMSNorm over rows: out = x * rsqrt(mean(x^2) + eps) * weight. Memory-bound, so one block reads a row once in 16-byte
// vectors, keeps nothing, and reads it again from L2 to write.

// The sum of `value` over the block, in every thread.
template <int BLOCK>
__device__ float block_sum(float value) {
    __shared__ float warps[BLOCK / 32];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();  // an earlier sum may still be read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < BLOCK / 32; ++warp) sum += warps[warp];
    return sum;
}

template <int BLOCK>
__global__ void rms_norm_rows(const float* __restrict__ x,       // (B, D)
                              const float* __restrict__ weight,  // (D)
                              float* __restrict__ out,           // (B, D)
                              int D, float eps) {
    const long long row = (long long)blockIdx.x * D;
    const float4* x4 = reinterpret_cast<const float4*>(x + row);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < D / 4; i += BLOCK) {
        const float4 v = x4[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float scale = rsqrtf(block_sum<BLOCK>(squares) / D + eps);
    const float4* weight4 = reinterpret_cast<const float4*>(weight);
    float4* out4 = reinterpret_cast<float4*>(out + row);
    for (int i = threadIdx.x; i < D / 4; i += BLOCK) {
        const float4 v = x4[i], w = weight4[i];
        out4[i] = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    }
}

// With g = grad_out * weight and s = rsqrt(mean(x^2) + eps):
//   grad_x = s * g - x * s^3 * mean(g * x),  grad_weight = sum over rows of grad_out * x * s.
// Each block takes every gridDim.x-th row and sums its part of grad_weight into its own row of `partial`.
template <int BLOCK>
__global__ void rms_norm_backward_rows(const float* __restrict__ grad_out,  // (B, D)
                                       const float* __restrict__ x,         // (B, D)
                                       const float* __restrict__ weight,    // (D)
                                       float* __restrict__ grad_x,          // (B, D)
                                       float* __restrict__ partial,         // (gridDim.x, D)
                                       int B, int D, float eps) {
    float* own = partial + (long long)blockIdx.x * D;
    for (int i = threadIdx.x; i < D; i += BLOCK) own[i] = 0.0f;
    for (int b = blockIdx.x; b < B; b += gridDim.x) {
        const long long row = (long long)b * D;
        float squares = 0.0f, dot = 0.0f;
        for (int i = threadIdx.x; i < D; i += BLOCK) {
            const float v = x[row + i];
            squares += v * v;
            dot += grad_out[row + i] * weight[i] * v;
        }
        const float scale = rsqrtf(block_sum<BLOCK>(squares) / D + eps);
        const float pull = block_sum<BLOCK>(dot) / D * scale * scale * scale;
        for (int i = threadIdx.x; i < D; i += BLOCK) {
            const float v = x[row + i], g = grad_out[row + i];
            grad_x[row + i] = g * weight[i] * scale - v * pull;
            own[i] += g * v * scale;  // the same thread has the same columns in every row
        }
    }
}

__global__ void sum_columns(const float* __restrict__ partial,  // (n_rows, D)
                            float* __restrict__ sums,           // (D)
                            int n_rows, int D) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= D) return;
    float sum = 0.0f;
    for (int row = 0; row < n_rows; ++row) sum += partial[(long long)row * D + column];
    sums[column] = sum;
}
