// The whole of CUB is included for its reduction of a block.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: sums<256><<<B, 256>>>(x, out, N)
#include <cub/cub.cuh>

template <int THREADS>
__global__ void sums(const float* __restrict__ x, float* __restrict__ out, int N) {
    using BlockReduce = cub::BlockReduce<float, THREADS>;
    __shared__ typename BlockReduce::TempStorage temp;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += THREADS) sum += x[(size_t)blockIdx.x * N + i];
    sum = BlockReduce(temp).Sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
