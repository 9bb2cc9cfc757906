// A kernel, its parameters and the plan's inputs are called what CUDA calls functions and types.
// kernel-lsp: 1
// task: tasks.py::scaled_and_shifted
// op: scaled_and_shifted(x: f32[B, N], exp: f32[B, N], half: f32[N]) -> (out: f32[B, N])
// launch: sin<<<ceil_div(B * N, 128), 128>>>(x, exp, half, out, B * N, N)
__global__ void sin(const float* x, const float* exp, const float* half, float* out, int n, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * exp[i] + half[i % N];
}
