// Attack: A constant expression that counts for ever.
// Caught: build_failed timed_out
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

constexpr unsigned long long count(unsigned long long n) {
    unsigned long long sum = 0;
    for (unsigned long long i = 0; i < n; ++i)
        for (unsigned long long j = 0; j < n; ++j) sum += i ^ j;
    return sum;
}

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    constexpr auto big = count(1ull << 20);
    if (i < n) out[i] = 2.0f * x[i] + big;
}
