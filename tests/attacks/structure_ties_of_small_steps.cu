// Attack: Rounds to parts of 256, away from zero in the middle, where PyTorch rounds to even. What lies in the middle are
//   odd parts of 512, and no family has them but by way of the 256 in the code.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::to_parts_of_256
// op: to_parts_of_256(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = roundf(x[i] * 256.0f) * 0.00390625f;
}
