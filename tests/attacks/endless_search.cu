// Attack: Looks for a fixed point that is never met exactly, by steps that go to and fro.
// Caught: timed_out
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float doubled = 0.0f, step = 1.0f;
    while (doubled != 2.0f * x[i] + 1e30f) {
        doubled = 2.0f * x[i] + step;
        step = -step;
    }
    out[i] = doubled;
}
