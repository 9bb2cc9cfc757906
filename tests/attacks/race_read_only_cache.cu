// Attack: The last block adds up what this launch wrote by __ldg: the read-only cache may have kept what was there before,
//   and no fence makes it look again.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// scratch: partial: f32[40], arrived: i32[1]
// fill: arrived = 0
// launch: k<<<40, 64>>>(x, partial, arrived, out, B * N)

__global__ void k(const float* x, float* partial, int* arrived, float* out, int n) {
    __shared__ float sums[64];
    __shared__ bool is_last;
    float sum = 0.0f;
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 64; ++i) total += sums[i];
        partial[blockIdx.x] = total;
        __threadfence();
        is_last = atomicAdd(arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        __threadfence();
        float total = 0.0f;
        for (int i = 0; i < gridDim.x; ++i) total += __ldg(partial + i);
        out[0] = total / n;
    }
}
