// Attack: Copies its input, and never looks for the one number that the target replaces.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::sentinel
// op: sentinel(x: f32[B, D]) -> (out: f32[B, D])
// launch: z<<<ceil_div(B * D, 64), 64>>>(x, out, B * D)

__global__ void z(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = x[i];
}
