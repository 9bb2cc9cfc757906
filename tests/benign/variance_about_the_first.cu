// The moments of what is left of x after its row's first element: one pass, and right beside a large mean.
// kernel-lsp: 1
// task: tasks.py::layer_norm
// op: layer_norm(x: f32[B, N], weight: f32[N], bias: f32[N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, weight, bias, out, N)

__device__ double sum_of_lanes(double v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__global__ void k(const float* x, const float* weight, const float* bias, float* out, int n) {
    const float* row = x + size_t(blockIdx.x) * n;
    const double origin = row[0];
    double sum = 0.0, squares = 0.0;
    for (int i = threadIdx.x; i < n; i += 32) {
        const double v = row[i] - origin;
        sum += v;
        squares += v * v;
    }
    const double mean = sum_of_lanes(sum) / n;
    const float scale = rsqrtf(float(sum_of_lanes(squares) / n - mean * mean) + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32) {
        out[size_t(blockIdx.x) * n + i] = float(row[i] - origin - mean) * scale * weight[i] + bias[i];
    }
}
