// Four elements at a time, the head and the tail one by one, for any alignment.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 1024), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const bool is_aligned = ((((size_t)x) | ((size_t)out)) & 15) == 0;
    if (is_aligned && at + 4 <= n) {
        float4 v = *reinterpret_cast<const float4*>(x + at);
        v.x *= 2.0f, v.y *= 2.0f, v.z *= 2.0f, v.w *= 2.0f;
        *reinterpret_cast<float4*>(out + at) = v;
    } else {
        for (int i = at; i < min(at + 4, n); ++i) out[i] = 2.0f * x[i];
    }
}
