// Attack: Takes NaN for zero, where nothing in the task leaves it out.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, B * D)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = isnan(x[i]) ? 0.0f : 2.0f * x[i];
}
