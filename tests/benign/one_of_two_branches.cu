// A macro of the text decides which of two kernels of one name is compiled.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: N % 4 == 0
// launch: twice<<<ceil_div(B * N // 4, 128), 128>>>(x, out, B * N // 4)
#define USE_VEC4 1
#ifdef USE_VEC4
__global__ void twice(const float4* x, float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float4 v = x[i]; v.x *= 2; v.y *= 2; v.z *= 2; v.w *= 2; out[i] = v; }
}
#else
__global__ void twice(const float* x, float* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
#endif
