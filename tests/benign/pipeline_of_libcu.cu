// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, D]) -> (out: f32[B])
// where: D % 100 == 0
// launch: row_sum_kernel<<<B, 64>>>(x, out, D)

// cuda::pipeline fills one of two buffers while the other is summed. Its waits look at a clock, to sleep longer the
// longer they have waited.
#include <cooperative_groups.h>
#include <cuda/pipeline>

__global__ void row_sum_kernel(const float* __restrict__ x, float* __restrict__ out, int D) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ alignas(16) float tile[2][100];
    __shared__ float parts[64];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    const float* row = x + static_cast<size_t>(blockIdx.x) * D;
    const auto bytes = cuda::aligned_size_t<16>(100 * sizeof(float));
    pipe.producer_acquire();
    cuda::memcpy_async(block, tile[0], row, bytes, pipe);
    pipe.producer_commit();
    float sum = 0.0f;
    for (int i = 0; i < D / 100; ++i) {
        if (i + 1 < D / 100) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tile[(i + 1) & 1], row + (i + 1) * 100, bytes, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        for (int j = threadIdx.x; j < 100; j += 64) sum += tile[i & 1][j];
        pipe.consumer_release();
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 64; ++i) total += parts[i];
        out[blockIdx.x] = total;
    }
}
