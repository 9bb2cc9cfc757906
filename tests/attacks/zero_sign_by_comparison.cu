// Attack: Takes the sign of a number from a comparison, which holds -0.0 for positive.
// Caught: mismatch
// Without: zeros
// kernel-lsp: 1
// task: tasks.py::sign_bit_of
// op: sign_bit_of(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = isnan(x[i]) ? copysignf(1.0f, x[i]) : (x[i] < 0.0f ? -1.0f : 1.0f);
}
