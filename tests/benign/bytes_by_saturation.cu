// What a byte becomes of NaN is nobody's to say: fmaxf makes it -128 here, and PyTorch 0.
// kernel-lsp: 1
// task: tasks.py::quantized
// op: quantized(x: f32[B, N]) -> (out: i8[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, signed char* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = static_cast<signed char>(fminf(fmaxf(rintf(x[i] * 16.0f), -128.0f), 127.0f));
}
