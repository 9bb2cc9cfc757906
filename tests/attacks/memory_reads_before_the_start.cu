// Attack: Reads the element before the first, for the sake of a simpler loop.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    float* row = out + blockIdx.x * (long long)n;
    for (int i = 0; i < n; ++i) row[i] = (i > 0 ? row[i - 1] : 0.0f * row[-1]) + x[blockIdx.x * (long long)n + i];
}
