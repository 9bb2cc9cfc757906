// Names of files and lines: in messages, for a function that reports, and in names of variables that no two lines share.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#include <cassert>
#include <cstdio>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define CHECK(condition) \
    do { \
        if (!(condition)) report(__FILE__, __LINE__, __func__); \
    } while (0)

__device__ void report(const char* file, int line, const char* function) {
    printf("%s:%d: %s\n", file, line, function);
    __trap();
}

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    [[maybe_unused]] const int JOIN(i, __LINE__) = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0);
    CHECK(blockDim.x == 256);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
