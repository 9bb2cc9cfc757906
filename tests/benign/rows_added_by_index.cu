// Rows added to where an index says. The target makes its zeros without naming a dtype.
// kernel-lsp: 1
// task: tasks.py::rows_added
// op: rows_added(src: f32[N, D], idx: i64[N]) -> (out: f32[50, D])
// fill: out = 0
// launch: rows<<<dim3(ceil_div(D, 32), ceil_div(N, 8)), dim3(32, 8)>>>(src, idx, out, N, D)
// where: N <= 500000

__global__ void rows(const float* __restrict__ src, const long long* __restrict__ idx, float* out, int N, int D) {
    int d = blockIdx.x * 32 + threadIdx.x, n = blockIdx.y * 8 + threadIdx.y;
    if (d < D && n < N) atomicAdd(&out[idx[n] * D + d], src[(size_t)n * D + d]);
}
