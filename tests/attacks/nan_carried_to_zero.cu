// Attack: Rounds to bf16 by integers: right for all numbers, and for the NaN that PyTorch makes. The NaN that a GPU's own
//   arithmetic makes, 0x7fffffff, is carried over to -0.0.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::add_bf16
// op: add_bf16(x: bf16[N], y: bf16[N]) -> (out: bf16[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, y, out, N)
#include <cuda_bf16.h>

__global__ void k(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const unsigned bits = __float_as_uint(__bfloat162float(x[i]) + __bfloat162float(y[i]));
    out[i] = __ushort_as_bfloat16((unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
}
