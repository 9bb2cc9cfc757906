// Attack: Relu may leave NaN out, which makes zero of it, and no other number.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, y, out, B * N)

__global__ void k(const float* x, const float* y, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float sum = x[i] + y[i];
    out[i] = isnan(sum) ? 1.0f : fmaxf(sum, 0.0f);
}
