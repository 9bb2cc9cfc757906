// Attack: Writes only true: fresh memory holds zeros.
// Caught: mismatch crashed
// Without: poison patterns
// kernel-lsp: 1
// task: tasks.py::is_negative
// op: is_negative(x: f32[B, N]) -> (out: bool[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, bool* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] < 0.0f) out[i] = true;
}
