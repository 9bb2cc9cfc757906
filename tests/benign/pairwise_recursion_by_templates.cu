// A tree of additions that a template unrolls.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out, N)

template <int N>
__device__ __forceinline__ float tree(const float* v) {
    if constexpr (N == 1) return v[0];
    else return tree<N / 2>(v) + tree<N - N / 2>(v + N / 2);
}

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float sum = 0.0f;
    int i = 0;
    for (; i + 16 <= n; i += 16) sum += tree<16>(row + i);
    for (; i < n; ++i) sum += row[i];
    out[blockIdx.x] = sum;
}
