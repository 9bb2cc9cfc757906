// Assertions and traps for what cannot happen.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cassert>

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0);
    if (blockDim.x != 256) __trap();
    if (i < n) out[i] = 2.0f * x[i];
}
