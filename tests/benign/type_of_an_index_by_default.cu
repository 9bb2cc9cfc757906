// The type of the index is a default that the launch leaves out.
// kernel-lsp: 1
// task: tasks.py::silu
// op: silu(x: f32[B, N]) -> (out: f32[B, N])
// launch: apply<Silu, 2><<<ceil_div(B * N, 512), 256>>>(x, out, B * N)

struct Silu {
    __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};

template <typename Function, int PER_THREAD, typename Index = unsigned>
__global__ void apply(const float* x, float* out, Index n) {
    const Index first = blockIdx.x * blockDim.x * PER_THREAD + threadIdx.x;
    const Function function;
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        const Index i = first + j * blockDim.x;
        if (i < n) out[i] = function(x[i]);
    }
}
