// Two kernels have one name, and so have helpers.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: scale<<<ceil_div(B * N, 128), 128>>>(x, out, B * N)
__device__ float two(float v) { return 2 * v; }
__device__ double two(double v) { return 2 * v; }
template <class T> __device__ T two(T v, int) { return v + v; }
__global__ void scale(const double* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = two(x[i]);
}
__global__ void scale(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = two(two(x[i]), 0) / 2;
}
