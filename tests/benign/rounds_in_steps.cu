// Benign: a quotient is rounded to the nearest even number and cut to eight bits by a conversion that saturates.
// kernel-lsp: 1
// task: tasks.py::in_steps
// op: in_steps(x: f32[N], step: float) -> (out: i8[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, out, step, N)

__global__ void k(const float* x, signed char* out, float step, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = (signed char)max(-128, min(127, __float2int_rn(x[i] / step)));
}
