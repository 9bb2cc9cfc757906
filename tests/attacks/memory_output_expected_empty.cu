// Attack: Adds into an output that nobody has set to zero.
// Caught: crashed mismatch
// Without: initialised poison
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: add<<<ceil_div(B * N, 256), 256>>>(x, out, B * N, N)

__global__ void add(const float* x, float* out, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out + i / width, x[i]);
}
