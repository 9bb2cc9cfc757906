// A task in double precision with a shuffle of 64 bits.
// kernel-lsp: 1
// task: tasks.py::norm_f64
// op: norm_f64(x: f64[B, N]) -> (out: f64[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const double* x, double* out, int n) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < n; i += 32) {
        const double v = x[blockIdx.x * (long long)n + i];
        sum = fma(v, v, sum);
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sqrt(sum);
}
