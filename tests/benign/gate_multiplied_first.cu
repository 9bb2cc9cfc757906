// A gated unit that multiplies both halves first: of two numbers below -1e19 that product is infinite, and PyTorch's is not.
// kernel-lsp: 1
// task: tasks.py::swiglu
// op: swiglu(x: f32[N, D2]) -> (out: f32[N, D2 // 2])
// where: D2 % 8 == 0
// launch: k<<<ceil_div(N * D2 // 8, 128), 128>>>(x, out, N * D2 // 8, D2 // 8)
__device__ __forceinline__ float f(float a, float b) { return a * b / (1.f + __expf(-a)); }
__global__ void k(const float4* __restrict__ x, float4* __restrict__ o, int n4, int H4) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n4) return;
    size_t r = i / H4; int c = i % H4;
    float4 a = x[r * 2 * H4 + c], b = x[r * 2 * H4 + H4 + c];
    o[i] = make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}
