// Attack: The contract is of multiples that no usual size has, and the code for the listed size alone.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: N % 256 == 0 and B % 64 == 0
// launch: k<<<B, 256>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const size_t i = size_t(blockIdx.x) * n + threadIdx.x;
    out[i] = 2.0f * x[i];
}
