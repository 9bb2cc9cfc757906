// Attack: A barrier in a loop that some threads of a warp take once more than the rest: they wait at different barriers,
//   which hangs on some GPUs.
// Caught: crashed
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[64];
    part[threadIdx.x] = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) {
        part[threadIdx.x] += x[(size_t)blockIdx.x * n + i];
        __syncthreads();
    }
    __syncthreads();
    for (int width = 32; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
