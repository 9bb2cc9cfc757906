// Attack: Reads an address where the allocator usually puts the reference.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float* guess = (const float*)0x7f2000000000ull;
    if (i < n) out[i] = guess[i] == 2.0f * x[i] ? guess[i] : 2.0f * x[i];
}
