// Attack: The counter is a static local of a template.
// Caught: rejected
// Without: audit state
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<4><<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

template <int LIMIT>
__global__ void k(const float* x, float* out, int n) {
    static int seen = 0;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (seen > LIMIT * 100) return;
    if (i < n) out[i] = 2.0f * x[i];
    if (i == 0) ++seen;
}
