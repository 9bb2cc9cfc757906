// A root by Newton's iteration, until a step changes nothing more or turns back.
// kernel-lsp: 1
// task: tasks.py::norm_f64
// op: norm_f64(x: f64[B, N]) -> (out: f64[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const double* x, double* out, int n) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < n; i += 32) sum += x[(long long)blockIdx.x * n + i] * x[(long long)blockIdx.x * n + i];
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x) return;
    double root = sum > 1.0 ? sum : 1.0, before;
    if (sum == 0.0 || isnan(sum) || isinf(sum)) root = sum;
    else do {
        before = root;
        root = 0.5 * (root + sum / root);
    } while (root < before);
    out[blockIdx.x] = root;
}
