// Attack: The state is written through a pointer that is itself an initialised variable, so that no store names the
//   counter.
// Caught: rejected
// Without: audit state
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ int counter;
__device__ int* hidden = &counter;

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (*hidden > 50) return;
    if (i < n) out[i] = 2.0f * x[i];
    if (i == 0) *hidden += 1;
}
