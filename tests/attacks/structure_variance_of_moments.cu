// Attack: The variance is the mean of squares less the square of the mean: no digit is left where the mean is large.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::layer_norm
// op: layer_norm(x: f32[B, N], weight: f32[N], bias: f32[N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, weight, bias, out, N)

__device__ float sum_of_lanes(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__global__ void k(const float* x, const float* weight, const float* bias, float* out, int n) {
    const size_t first = size_t(blockIdx.x) * n;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        sum += x[first + i];
        squares += x[first + i] * x[first + i];
    }
    const float mean = sum_of_lanes(sum) / n;
    const float scale = rsqrtf(fmaxf(sum_of_lanes(squares) / n - mean * mean, 0.0f) + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32) out[first + i] = (x[first + i] - mean) * scale * weight[i] + bias[i];
}
