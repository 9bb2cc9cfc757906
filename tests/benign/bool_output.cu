// A boolean output, four threads' answers packed into one store where that is possible.
// kernel-lsp: 1
// task: tasks.py::is_negative
// op: is_negative(x: f32[B, N]) -> (out: bool[B, N])
// launch: k<<<ceil_div(B * N, 512), 128>>>(x, out, B * N)

__global__ void k(const float* x, unsigned char* out, int n) {
    const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (at + 4 <= n) {
        unsigned packed = 0;
        for (int j = 0; j < 4; ++j) packed |= (x[at + j] < 0.0f ? 1u : 0u) << (8 * j);
        *reinterpret_cast<unsigned*>(out + at) = packed;
    } else {
        for (int i = at; i < n; ++i) out[i] = x[i] < 0.0f;
    }
}
