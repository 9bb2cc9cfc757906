// Attack: The function that is not there is called as if it belonged to the compiler.
// Caught: rejected build_failed unsupported
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

extern "C" __device__ float __nv_hidden(float);

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] > 1e30f ? __nv_hidden(x[i]) : 2.0f * x[i];
}
