// Arrays of a thread's own next to each other, of numbers and of pointers, filled by an index and by a pointer.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 32), 32>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    alignas(16) float low[4] = {}, high[2][4];
    for (float* p = &high[0][0]; p != &high[0][0] + 8; ++p) *p = 0.0f;
    float* parts[3] = {low, high[0], high[1]};
    int order[7], n_turns = 0;
    for (int i = 0; i < 7; ++i) order[i] = (i * 3 + n) % 7;
    for (int i = 0; i < n; ++i) {
        const int which = order[i % 7];
        char digits[3] = {};
        for (int d = 0, rest = i; d < 3; ++d, rest /= 4) digits[d] = rest % 4;
        parts[which % 3][(digits[which % 2] + digits[2]) % 4] += x[row * (long long)n + i];
        if (which == 6) continue;
        ++n_turns;
    }
    const float4 first = *reinterpret_cast<const float4*>(low);
    float sum = (first.x + first.y) + (first.z + first.w);
    for (int i = 0; i < 8; ++i) sum += parts[1][i];
    out[row] = n_turns > n ? 0.0f : sum;
}
