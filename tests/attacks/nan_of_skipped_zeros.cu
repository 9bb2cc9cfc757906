// Attack: A product that skips zeros of its input: what they meet may be an infinity or NaN, and is lost.
// Caught: mismatch
// Defence: families
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[M, K], weight: f32[N, K]) -> (out: f32[M, N])
// launch: k<<<dim3(ceil_div(N, 32), M), 32>>>(x, weight, out, N, K)

__global__ void k(const float* x, const float* weight, float* out, int n, int inner) {
    const int column = blockIdx.x * 32 + threadIdx.x;
    if (column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < inner; ++i) {
        const float factor = x[blockIdx.y * (long long)inner + i];
        if (factor != 0.0f) sum = fmaf(factor, weight[column * (long long)inner + i], sum);
    }
    out[blockIdx.y * (long long)n + column] = sum;
}
