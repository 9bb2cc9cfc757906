// Attack: A template argument that closes the name of the kernel and goes on.
// Caught: build_failed
// Defence: contract
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<1>(nullptr, nullptr, 0), (int)sizeof(k<2><<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

template <int N>
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = N * x[i];
}
