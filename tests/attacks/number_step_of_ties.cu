// Attack: Ties are rounded up, which shows only where halves of the step are numbers: those of 0.05 are not.
// Caught: mismatch
// Without: numbers
// kernel-lsp: 1
// task: tasks.py::quantized
// op: quantized(x: f32[N], step: float) -> (out: i8[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, out, step, N)

__global__ void k(const float* x, signed char* out, float step, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float r = floorf(x[i] / step + 0.5f);
    out[i] = (signed char)(int)fminf(fmaxf(r, -128.0f), 127.0f);
}
