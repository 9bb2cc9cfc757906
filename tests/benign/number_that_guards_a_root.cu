// A guard against division by zero, whose square root and reciprocal are one instruction.
// kernel-lsp: 1
// task: tasks.py::rms_by_guard
// op: rms_by_guard(x: f32[B, D], eps: float) -> (out: f32[B, D])
// launch: k<<<B, 32>>>(x, out, eps, D)

__global__ void k(const float* x, float* out, float eps, int D) {
    const float* row = x + (size_t)blockIdx.x * D;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += 32) sum += row[i] * row[i];
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    const float factor = rsqrtf(sum / D + eps);
    for (int i = threadIdx.x; i < D; i += 32) out[(size_t)blockIdx.x * D + i] = row[i] * factor;
}
