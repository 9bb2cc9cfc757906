// Attack: The grid is rounded down: the last block is missing for any size but the listed one.
// Caught: mismatch build_failed
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<max(1, B * N // 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
