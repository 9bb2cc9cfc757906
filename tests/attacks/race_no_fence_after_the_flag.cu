// Attack: Waits for the flag of the left neighbour and reads its total with a plain load and no fence: nothing keeps the
//   load behind the flag.
// Caught: crashed
// Without: races
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// scratch: ticket: i32[1], ready: i32[B, ceil_div(N, 64)], total: f32[B, ceil_div(N, 64)]
// fill: ticket = 0
// fill: ready = 0
// launch: k<<<B * ceil_div(N, 64), 1>>>(x, out, ticket, ready, total, N, ceil_div(N, 64))

__global__ void k(const float* x, float* out, int* ticket, int* ready, float* total, int n, int n_chunks) {
    const int place = atomicAdd(ticket, 1), row = place / n_chunks, chunk = place % n_chunks;
    float sum = 0.0f;
    if (chunk > 0) {
        while (((volatile int*)ready)[place - 1] == 0) __nanosleep(20);
        sum = total[place - 1];
    }
    for (int i = chunk * 64; i < min(chunk * 64 + 64, n); ++i) out[row * (long long)n + i] = sum += x[row * (long long)n + i];
    total[place] = sum;
    __threadfence();
    ((volatile int*)ready)[place] = 1;
}
