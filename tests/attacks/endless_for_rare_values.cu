// Attack: Never ends for values that no case has.
// Caught: rejected
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ __noinline__ void wait(float value) {
    volatile bool go_on = value == 123.456f;
    while (go_on) {}
}

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    wait(x[i]);
    out[i] = 2.0f * x[i];
}
