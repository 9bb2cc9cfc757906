// Attack: Integers of 64 bits by way of double, which holds 53 of them.
// Caught: mismatch
// Defence: families
// kernel-lsp: 1
// task: tasks.py::one_more
// op: one_more(x: i64[B, N]) -> (out: i64[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const long long* x, long long* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (long long)((double)x[i] + 1.0);
}
