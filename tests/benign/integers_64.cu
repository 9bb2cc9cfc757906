// Integers of 64 bits, two at a time through a vector.
// kernel-lsp: 1
// task: tasks.py::parity
// op: parity(x: i64[B, N]) -> (out: i64[B, N])
// launch: k<<<ceil_div(B * N, 64), 64>>>(x, out, B * N)

__global__ void k(const long long* x, long long* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (long long)((unsigned long long)x[i] << 63 >> 63);
}
