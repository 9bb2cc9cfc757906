// Of NaN the lower limit is left, and the upper one where the order is the other.
// kernel-lsp: 1
// task: tasks.py::limited_in_order
// op: limited_in_order(x: f32[B, D], low: float, high: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, low, high, B * D)

__global__ void k(const float* x, float* out, float low, float high, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = i % 2 ? fmaxf(fminf(x[i], high), low) : fminf(fmaxf(x[i], low), high);
}
