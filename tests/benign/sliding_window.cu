// A window that is reused from registers; the output is shorter than the input.
// kernel-lsp: 1
// task: tasks.py::blur
// op: blur(x: f32[A, B, N]) -> (out: f32[A, B, N - 2])
// launch: k<<<ceil_div(A * B, 64), 64>>>(x, out, A * B, N)

__global__ void k(const float* x, float* out, int rows, int n) {
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + row * (long long)n;
    float left = from[0], middle = from[1];
    for (int i = 2; i < n; ++i) {
        const float right = from[i];
        out[row * (long long)(n - 2) + i - 2] = (left + middle + right) / 3.0f;
        left = middle, middle = right;
    }
}
