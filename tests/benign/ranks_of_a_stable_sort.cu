// A stable sort by counting what comes before: one thread for each element.
// kernel-lsp: 1
// task: tasks.py::stably_sorted
// op: stably_sorted(x: f32[B, N]) -> (values: f32[B, N], indices: i64[B, N])
// where: N <= 4096
// launch: k<<<B, 128>>>(x, values, indices, N)

__device__ bool comes_before(float a, int at, float b, int bt) {
    if (isnan(a) || isnan(b)) return isnan(b) && (!isnan(a) || at < bt);
    return a < b || (a == b && at < bt);
}

__global__ void k(const float* x, float* values, long long* indices, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    for (int i = threadIdx.x; i < n; i += 128) {
        int rank = 0;
        for (int j = 0; j < n; ++j) rank += comes_before(row[j], j, row[i], i);
        values[blockIdx.x * (long long)n + rank] = row[i];
        indices[blockIdx.x * (long long)n + rank] = i;
    }
}
