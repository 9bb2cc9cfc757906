// Comments and strings in assembly that look odd and mean nothing.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    asm("// doubled .section by hand\n\t/* one { two } */ add.f32 %0, %0, %0; // \"done\"" : "+f"(v));
    if (i < n) out[i] = v;
}
