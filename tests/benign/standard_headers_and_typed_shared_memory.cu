// Headers of C++ and names of `std`, and dynamic shared memory of a template's type.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// where: N >= 1 and N * 4 <= 48000
// launch: softmax_shared<float, 128><<<B, 128, N * 4>>>(x, out, N)
#include "cuda_fp16.h"
#include <cmath>
#include <limits>
#include <algorithm>
#define FULL_MASK 0xffffffff
#define WARP_SIZE 32
template <typename T> struct SharedMemory {
    __device__ inline operator T*() { extern __shared__ __align__(sizeof(double)) unsigned char smem_[]; return reinterpret_cast<T*>(smem_); }
};
enum class Op { kMax, kSum };
template <Op kOp> __device__ __forceinline__ float combine(float a, float b) {
    if constexpr (kOp == Op::kMax) return a != a ? a : b != b ? b : std::max(a, b);
    else return a + b;
}
template <Op kOp, int THREADS> __device__ float block_reduce(float v, float identity) {
    static __shared__ float partial[THREADS / WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    #pragma unroll
    for (int offset = WARP_SIZE >> 1; offset > 0; offset >>= 1) v = combine<kOp>(v, __shfl_xor_sync(FULL_MASK, v, offset));
    __syncthreads();
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = identity;
    for (const float p : partial) v = combine<kOp>(v, p);
    return v;
}
template <typename T, int THREADS>
__global__ void softmax_shared(const T* __restrict__ x, T* __restrict__ out, const unsigned int N) {
    T* row = SharedMemory<T>();
    const T* in = &x[static_cast<size_t>(blockIdx.x) * N];
    float m = -std::numeric_limits<float>::infinity();
    for (unsigned i = threadIdx.x; i < N; i += THREADS) { row[i] = in[i]; m = combine<Op::kMax>(m, row[i]); }
    m = block_reduce<Op::kMax, THREADS>(m, -INFINITY);
    float s = 0;
    for (unsigned i = threadIdx.x; i < N; i += THREADS) { row[i] = std::exp(row[i] - m); s += row[i]; }
    s = block_reduce<Op::kSum, THREADS>(s, 0);
    for (unsigned i = threadIdx.x; i < N; i += THREADS) out[static_cast<size_t>(blockIdx.x) * N + i] = row[i] / s;
}
