// A division by the reciprocal instruction with correct rounding.
// kernel-lsp: 1
// task: tasks.py::reciprocal
// op: reciprocal(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __frcp_rn(x[i]);
}
