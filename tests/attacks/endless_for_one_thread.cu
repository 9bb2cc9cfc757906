// Attack: One thread of each block never ends; the small blocks of other cases have no such thread.
// Caught: rejected
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile int go_on = 1;
    if (i < n) out[i] = 2.0f * x[i];
    if (threadIdx.x == 77) while (go_on) {}
}
