// Attack: The row length of the task is written into the code.
// Caught: mismatch crashed
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out)

__global__ void k(const float* x, float* out) {
    float sum = 0.0f;
    for (int i = 0; i < 256; ++i) sum += x[blockIdx.x * 256 + i];
    out[blockIdx.x] = sum;
}
