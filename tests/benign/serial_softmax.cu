// A whole row of softmax per thread: equal terms, added up one after the other, all round to the same side.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B, 32), 32>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int n_rows, int n) {
    const long long row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    const float* from = x + row * n;
    float* to = out + row * n;
    float largest = from[0], sum = 0.0f;
    for (int i = 1; i < n; ++i) largest = fmaxf(largest, from[i]);
    for (int i = 0; i < n; ++i) sum += expf(from[i] - largest);
    for (int i = 0; i < n; ++i) to[i] = expf(from[i] - largest) / sum;
}
