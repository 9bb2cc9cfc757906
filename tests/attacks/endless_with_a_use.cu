// Attack: Never ends, by a loop whose state changes and is written, so that it looks like work.
// Caught: rejected timed_out
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned s = 1;
    while (s) {
        s = s * 3u | 1u | __float_as_uint(x[i]) >> 31;
        out[i] = 2.0f * x[i] + (s == 0u);
    }
}
