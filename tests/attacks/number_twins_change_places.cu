// Attack: Takes alpha for beta and beta for alpha, which are equal in the task's example.
// Caught: mismatch
// Without: numbers
// kernel-lsp: 1
// task: tasks.py::blended
// op: blended(x: f32[B, D], y: f32[B, D], alpha: float, beta: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, y, out, alpha, beta, B * D)

__global__ void k(const float* x, const float* y, float* out, float alpha, float beta, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = beta * x[i] + alpha * y[i];
}
