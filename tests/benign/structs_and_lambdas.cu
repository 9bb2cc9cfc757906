// A functor handed to a template, and a lambda.
// kernel-lsp: 1
// task: tasks.py::silu
// op: silu(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

struct Sigmoid {
    __device__ float operator()(float v) const { return 1.0f / (1.0f + expf(-v)); }
};

template <typename F>
__device__ float times(float v, F f) { return v * f(v); }

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto in_range = [n](int j) { return j < n; };
    if (in_range(i)) out[i] = times(x[i], Sigmoid());
}
