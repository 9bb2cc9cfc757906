// Attack: All blocks add to one sum by atomicAdd_block, which is atomic among the threads of a block alone.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::mean_all
// op: mean_all(x: f32[B, N]) -> (out: f32[])
// fill: out = 0
// launch: k<<<40, 64>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    float sum = 0.0f;
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) atomicAdd_block(out, sum / n);
}
