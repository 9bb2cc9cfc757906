// The number of a block in two words of 16 bits, and the parts of a number in f32 by masks.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<B, 64>>>(x, out, D)

__global__ void k(const float* x, float* out, int d) {
    const unsigned short low = blockIdx.x & 0xffff, high = blockIdx.x >> 16;
    const long long row = (long long)high << 16 | low;
    for (int i = threadIdx.x; i < d; i += 64) {
        const unsigned bits = __float_as_uint(x[row * d + i]);
        const unsigned exponent = bits >> 23 & 0xff, digits = bits & 8388607;
        float doubled = 2.0f * x[row * d + i];
        if (exponent > 0 && exponent < 0xfe) doubled = __uint_as_float((bits & 0x80000000u) | (exponent + 1) << 23 | digits);
        out[row * d + i] = doubled;
    }
}
