// A generator wrote this, and says where its template has the code.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

#define PASTE(a, b) a##b
#line 12 "double.template"
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) PASTE(o, ut)[i] = 2.0f * x[i];
}
