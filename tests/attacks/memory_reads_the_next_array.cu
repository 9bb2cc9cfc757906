// Attack: Five numbers of an array of four are added up: the fifth is the first of the next array, a zero.
// Caught: mismatch
// Without: guards
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 64), 64>>>(x, out, B, N)

__global__ void k(const float* x, float* out, int rows, int width) {
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (long long)row * width;
    float parts[4] = {}, zeros[4] = {};
    for (int i = 0; i < width; ++i) parts[i & 3] += from[i];
    zeros[width & 1] = 0.0f;
    float sum = 0.0f;
    for (int i = 0; i <= 3 + (width > 0); ++i) sum += parts[(i + width) % 4 == 0 && i == 4 ? 4 : i % 5];
    out[row] = sum + zeros[width & 3];
}
