// Attack: Declares and calls a function of the CUDA runtime that only a device linker would find.
// Caught: rejected build_failed unsupported
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

extern "C" __device__ int cudaMemcpyAsync_v2(void*, const void*, unsigned long long, int, void*);

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) cudaMemcpyAsync_v2(out, x, n * 4, 3, 0);
    if (i < n) out[i] = 2.0f * x[i];
}
