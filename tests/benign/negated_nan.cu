// Negates what it computed: of a GPU's NaN that is one with all bits set.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float result;
    asm("neg.f32 %0, %1;" : "=f"(result) : "f"(-2.0f * x[i]));
    out[i] = result;
}
