// Attack: The signature says half, and the task says single.
// Caught: build_failed
// Defence: contract
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f16[B, N]) -> (out: f16[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cuda_fp16.h>

__global__ void k(const __half* x, __half* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __hadd(x[i], x[i]);
}
