// A chunk's total and the word that it is there are one 64-bit store, so that no fence is needed between them.
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// scratch: ticket: i32[1], state: i64[B, ceil_div(N, 64)]
// fill: ticket = 0
// fill: state = 0
// launch: k<<<B * ceil_div(N, 64), 32>>>(x, out, ticket, state, N, ceil_div(N, 64))

__global__ void k(const float* x, float* out, int* ticket, long long* state, int n, int n_chunks) {
    __shared__ int shared_place;
    __shared__ float before;
    if (threadIdx.x == 0) shared_place = atomicAdd(ticket, 1);
    __syncthreads();
    const int place = shared_place, row = place / n_chunks, chunk = place % n_chunks;
    const float* own = x + row * (long long)n;
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        if (chunk > 0) {
            long long word;
            do word = *(volatile long long*)(state + place - 1);
            while ((word & 1LL << 32) == 0);
            sum = __int_as_float((int)word);
        }
        before = sum;
        for (int i = chunk * 64; i < min(chunk * 64 + 64, n); ++i) sum += own[i];
        *(volatile long long*)(state + place) = 1LL << 32 | (unsigned)__float_as_int(sum);
    }
    __syncthreads();
    for (int i = chunk * 64 + threadIdx.x; i < min(chunk * 64 + 64, n); i += 32) {
        float sum = before;
        for (int j = chunk * 64; j <= i; ++j) sum += own[j];
        out[row * (long long)n + i] = sum;
    }
}
