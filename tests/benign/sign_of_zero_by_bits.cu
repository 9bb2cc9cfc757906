// The sign of y is taken from its bits, that of an angle from atan2f: both hold for -0.0.
// kernel-lsp: 1
// task: tasks.py::angle_of
// op: angle_of(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, y, out, B * N)

__global__ void k(const float* x, const float* y, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned sign = __float_as_uint(y[i]) & 0x80000000u;
    out[i] = atan2f(y[i], x[i]) + __uint_as_float((__float_as_uint(x[i]) & 0x7fffffffu) | sign);
}
