// Attack: Four elements per thread and no remainder: right for the sizes of the task.
// Caught: build_failed
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N // 4, 256), 256>>>(x, out, B * N // 4)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        for (int j = 0; j < 4; ++j) out[4 * i + j] = 2.0f * x[4 * i + j];
}
