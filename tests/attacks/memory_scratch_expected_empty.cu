// Attack: Adds into scratch that nobody has set to zero.
// Caught: crashed mismatch
// Without: initialised poison
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// scratch: s: f32[B]
// launch: add<<<ceil_div(B * N, 256), 256>>>(x, s, B * N, N)
// launch: k<<<ceil_div(B, 256), 256>>>(s, out, B)

__global__ void add(const float* x, float* s, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(s + i / width, x[i]);
}

__global__ void k(const float* s, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = s[i];
}
