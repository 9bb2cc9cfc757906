// Votes of a warp, turned back into bytes.
// kernel-lsp: 1
// task: tasks.py::is_negative
// op: is_negative(x: f32[B, N]) -> (out: bool[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, bool* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned votes = __ballot_sync(0xffffffffu, i < n && x[i < n ? i : 0] < 0.0f);
    if (i < n) out[i] = votes >> (threadIdx.x & 31) & 1u;
}
