// Names of files and lines in messages alone: of an assertion, and of a macro that prints before it stops.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cassert>
#include <cstdio>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: %s\n", __FILE__, __LINE__, __func__); \
            __trap(); \
        } \
    } while (0)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    assert(n > 0);
    CHECK(blockDim.x == 256);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
