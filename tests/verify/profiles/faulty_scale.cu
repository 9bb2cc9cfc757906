// kernel-lsp: 1
// task: faulty_scale.py::faulty_scale
// op: faulty_scale(x: f32[N]) -> (out: f32[N])
// scratch: never_written: f32[N]
// launch: reverse_pairs<<<ceil_div(N, 64), 64>>>(x, never_written, out, N)

// Wrong in three ways that only tools see: it reads past the end of `x`, reads scratch that nobody wrote, and has no
// barrier between the writes and the reads of `tile`.

__global__ void reverse_pairs(const float* x,              // (N)
                              const float* never_written,  // (N)
                              float* out,                  // (N)
                              int N) {
    __shared__ float tile[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < N) tile[threadIdx.x] = 0.5f * (x[i] + x[i + 1]);
    if (i < N) out[i] = tile[threadIdx.x ^ 33] + never_written[i];
}
