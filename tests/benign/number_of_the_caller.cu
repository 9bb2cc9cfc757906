// Takes a number of the caller's, which a second value shows.
// kernel-lsp: 1
// task: tasks.py::leaky
// op: leaky(x: f32[B, D], alpha: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, alpha, B * D)

__global__ void k(const float* x, float* out, float alpha, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] < 0.0f ? alpha * x[i] : x[i];
}
