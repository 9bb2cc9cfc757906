// Attack: A half is added, and what comes of it is cut: ties are minded, the number right below a half is not.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::rounded
// op: rounded(x: f32[N]) -> (out: i32[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, out, N)

__global__ void k(const float* x, int* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float v = fminf(fmaxf(x[i], -1e9f), 1e9f);
    if (fabsf(v) >= 4194304.0f) {
        out[i] = (int)rintf(v);
        return;
    }
    const int below = (int)floorf(v);
    out[i] = v - (float)below == 0.5f ? below + (below & 1) : (int)floorf(v + 0.5f);
}
