// One pass for the maximum and the sum; lanes are merged by shuffles.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float top = -3.402823466e38f, sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        const float v = row[i], next = fmaxf(top, v);
        sum = sum * expf(top - next) + expf(v - next);
        top = next;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_top = __shfl_xor_sync(0xffffffffu, top, offset);
        const float other_sum = __shfl_xor_sync(0xffffffffu, sum, offset);
        const float next = fmaxf(top, other_top);
        sum = sum * expf(top - next) + other_sum * expf(other_top - next);
        top = next;
    }
    for (int i = threadIdx.x; i < n; i += 32) out[blockIdx.x * (long long)n + i] = expf(row[i] - top) / sum;
}
