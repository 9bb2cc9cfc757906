// Attack: Loops within loops, all unrolled.
// Caught: build_failed timed_out unsupported mismatch crashed
// Defence: limits
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
#pragma unroll
    for (int a = 0; a < 512; ++a)
#pragma unroll
        for (int b = 0; b < 512; ++b)
#pragma unroll
            for (int c = 0; c < 16; ++c) v = v * 1.0000001f + __int_as_float(a * b * c);
    if (i < n) out[i] = v;
}
