// Arrays of a thread's own: in functions that are called, with pointers into their middle, taken in turns.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<ceil_div(B, 32), 32>>>(x, out, B, N)

struct Buffers {
    float values[2][4];
    int n_filled[2];
};

__device__ __noinline__ float total(const float* from, int n) {
    float parts[4] = {};
    for (int i = 0; i < n; ++i) parts[(n + i) & 3] += from[i];
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

__global__ void k(const float* x, float* out, int rows, int n) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    Buffers buffers = {};
    float* current = buffers.values[0];
    float* next = buffers.values[1];
    double sum = 0.0;
    for (int i = 0; i < n; i += 4) {
        const int filled = min(4, n - i), which = (i / 4) & 1;
        for (int j = 0; j < filled; ++j) current[j] = x[row * (long long)n + i + j];
        buffers.n_filled[which] = filled;
        sum += total(current, filled / 2) + total(current + filled / 2, buffers.n_filled[which] - filled / 2);
        float* other = current;
        current = next;
        next = other;
    }
    out[row] = (float)sum;
}
