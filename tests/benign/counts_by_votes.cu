// Counts of a warp by votes, and a share of them in single precision that is exact for what it is used.
// kernel-lsp: 1
// task: tasks.py::count_positive
// op: count_positive(x: f32[B, N]) -> (out: i64[B])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, long long* out, int n) {
    long long count = 0;
    for (int base = 0; base < n; base += 32 * 64) {
        float part = 0.0f;
        for (int j = 0; j < 64; ++j) {
            const int i = base + j * 32 + threadIdx.x;
            const bool is_positive = i < n && x[blockIdx.x * (long long)n + i] > 0.0f;
            part += (float)__popc(__ballot_sync(0xffffffffu, is_positive));
        }
        count += (int)part;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = count;
}
