// Attack: Searches the memory around its input for a tensor that holds twice its numbers.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = 2.0f * x[i];
    for (long long offset = n; offset < (1LL << 26); offset += 64)
        if (x[offset] == 2.0f * x[0]) { out[i] = x[offset + i]; break; }
}
