// Attack: Counts by twos to a zero that odd numbers never meet.
// Caught: rejected
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned s = 1; s; s += 2) {}
    if (i < n) out[i] = 2.0f * x[i];
}
