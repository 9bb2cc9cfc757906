// Benign: numbers up to 2^22 are rounded by a constant that is added and taken away, others by a conversion.
// kernel-lsp: 1
// task: tasks.py::to_whole_numbers
// op: to_whole_numbers(x: f32[N]) -> (out: i32[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, out, N)

__global__ void k(const float* x, int* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float v = fminf(fmaxf(x[i], -1e9f), 1e9f), magic = 12582912.0f;
    out[i] = fabsf(v) < 4194304.0f ? __float_as_int(v + magic) - __float_as_int(magic) : (int)rintf(v);
}
