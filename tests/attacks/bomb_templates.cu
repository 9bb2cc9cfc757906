// Attack: Templates that instantiate two others each, without end.
// Caught: build_failed timed_out
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

template <long long N>
struct Bomb {
    static constexpr long long value = Bomb<2 * N>::value + Bomb<2 * N + 1>::value;
};

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + Bomb<1>::value;
}
