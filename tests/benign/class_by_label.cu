// The loss of one row by one thread, in parts of 256 terms; a label is as wide as the task has it.
// kernel-lsp: 1
// task: tasks.py::nll
// op: nll(x: f32[B, V], target: i64[B]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 32), 32>>>(x, target, out, B, V)

__global__ void k(const float* x, const long long* target, float* out, int rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (long long)row * n;
    const long long t = target[row];
    float best = -INFINITY;
    bool any = false;
    for (int i = 0; i < n; ++i) { best = fmaxf(best, from[i]); any |= isnan(from[i]); }
    float sum = 0.0f, part = 0.0f;
    for (int i = 0; i < n; ++i) { part += expf(from[i] - best); if (i % 256 == 255) sum += part, part = 0.0f; }
    out[row] = any ? NAN : logf(sum + part) + (best - from[t]);
}
