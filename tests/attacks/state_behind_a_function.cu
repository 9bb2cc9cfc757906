// Attack: A function that is not inlined gives back the address of the state.
// Caught: rejected
// Without: audit state
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ int counter[2];

__device__ __noinline__ int* where(int i) { return counter + (i & 1); }

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (*where(1) > 50) return;
    if (i < n) out[i] = 2.0f * x[i];
    if (i == 0) *where(1) += 1;
}
