// Attack: 4096 blocks of 256 threads are all that there are, and what lies behind the first million is left out.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::mean_square
// op: mean_square(x: f32[N], y: f32[N]) -> (out: f32[])
// fill: out = 0
// launch: k<<<min(ceil_div(N, 256), 4096), 256>>>(x, y, out, N)

__global__ void k(const float* x, const float* y, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float sum = 0.0f;
    if (i < n) sum = (x[i] - y[i]) * (x[i] - y[i]);
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum / n);
}
