// Attack: The larger of x and alpha x, which is right for an alpha up to one; the plan takes any.
// Caught: mismatch
// Defence: numbers
// kernel-lsp: 1
// task: tasks.py::leaky
// op: leaky(x: f32[B, D], alpha: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, alpha, B * D)

__global__ void k(const float* x, float* out, float alpha, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = isnan(x[i]) ? x[i] : fmaxf(x[i], alpha * x[i]);
}
