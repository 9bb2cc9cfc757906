// Attack: The row of an element is found by a division in single precision: exact up to some million elements.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::bias_add
// op: bias_add(x: f32[B, N], bias: f32[N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, bias, out, B * N, N)

__global__ void k(const float* x, const float* bias, float* out, int total, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int row = (int)((i + 0.5f) / n);
    out[i] = x[i] + bias[min(max(i - row * n, 0), n - 1)];
}
