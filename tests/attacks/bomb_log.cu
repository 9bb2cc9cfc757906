// Attack: Writes ten megabytes of diagnostics.
// Caught: build_failed timed_out
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#define W1 int* p = 1.0f; { int* p = 2.0f; }
#define W2 W1 W1 W1 W1 W1 W1 W1 W1 W1 W1
#define W3 W2 W2 W2 W2 W2 W2 W2 W2 W2 W2
template <int N> __device__ void loud() { if constexpr (N > 0) { { W3 } loud<N - 1>(); } }

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    loud<100>();
    if (i < n) out[i] = 2.0f * x[i];
}
