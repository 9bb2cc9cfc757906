// Attack: Allocates from the device heap, which outlives the launch.
// Caught: rejected build_failed
// Defence: audit
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ float* cache;

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0 && cache == nullptr) cache = (float*)malloc(1024);
    if (i < n) out[i] = 2.0f * x[i];
}
