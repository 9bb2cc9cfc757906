// Few blocks take rows from a counter until none is left; the last to leave gives the counters back as they were.
// kernel-lsp: 1
// task: tasks.py::row_sum
// op: row_sum(x: f32[B, N]) -> (out: f32[B])
// scratch: next: i32[1], left: i32[1]
// fill: next = 0
// fill: left = 0
// launch: k<<<min(B, 64), 32>>>(x, next, left, out, B, N)

__global__ void k(const float* x, int* next, int* left, float* out, int n_rows, int n) {
    for (;;) {
        int row = 0;
        if (threadIdx.x == 0) row = atomicAdd(next, 1);
        row = __shfl_sync(~0u, row, 0);
        if (row >= n_rows) break;
        float sum = 0.0f;
        for (int i = threadIdx.x; i < n; i += 32) sum += x[row * (long long)n + i];
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (threadIdx.x == 0) out[row] = sum;
    }
    if (threadIdx.x == 0 && atomicAdd(left, 1) == gridDim.x - 1) {
        atomicExch(next, 0);
        atomicExch(left, 0);
    }
}
