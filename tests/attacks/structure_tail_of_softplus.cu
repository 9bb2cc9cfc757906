// Attack: softplus is zero below -12, where it is 6e-6: more than a unit of the one that log(1 + e^x) goes by way of.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::softplus
// op: softplus(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    if (x[i] < -12.0f) {
        out[i] = 0.0f;
    } else {
        out[i] = x[i] > 20.0f ? x[i] : log1pf(expf(x[i]));
    }
}
