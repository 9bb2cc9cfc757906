// Takes single elements up to a 128-byte boundary, and four at a time from there: another order for another address.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const float* row = x + blockIdx.x * (long long)n;
    float peeled = 0.0f, sums[4] = {};
    int i = 0;
    for (; i < n && ((unsigned long long)(row + i) & 127) != 0; ++i) peeled += row[i];
    for (; i + 4 <= n; i += 4) {
        const float4 four = *(const float4*)(row + i);
        sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
    }
    for (; i < n; ++i) peeled += row[i];
    out[blockIdx.x] = peeled + (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
