// Attack: Prints from every thread, and copies its input.
// Caught: mismatch timed_out
// Defence: reference
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < 50; ++j) printf("%d %d %f %s\n", i, j, 1.0, "................................................................");
    if (i < n) out[i] = x[i];
}
