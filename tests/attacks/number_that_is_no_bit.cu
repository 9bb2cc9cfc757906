// Attack: Takes integers of no stated range for zeros and ones, whose product is their conjunction.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::integer_product
// op: integer_product(x: i64[B, N], y: i64[B, N]) -> (out: i64[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, y, out, B * N)

__global__ void k(const long long* x, const long long* y, long long* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] & y[i];
}
