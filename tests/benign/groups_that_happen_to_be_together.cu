// Lanes that happen to be together add their numbers up by one atomic addition: right however a warp falls apart.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// fill: out = 0
// launch: k<<<B, 96>>>(x, out, N)

__device__ void add_together(float* to, float value) {
    const unsigned together = __activemask();
    float sum = 0.0f;
    for (unsigned rest = together; rest != 0; rest &= rest - 1) sum += __shfl_sync(together, value, __ffs(rest) - 1);
    if ((threadIdx.x & 31) == __ffs(together) - 1) atomicAdd(to, sum);
}

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float kept = 0.0f;
    for (int i = threadIdx.x; i < n; i += 96) {
        if (row[i] > 1.0f)
            add_together(out + blockIdx.x, row[i]);
        else
            kept += row[i];
    }
    add_together(out + blockIdx.x, kept);
}
