// Attack: Reads four elements at a time without a word about alignment.
// Caught: crashed mismatch build_failed
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<dim3(ceil_div(N // 4, 64), B), 64>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n / 4) return;
    const float4 v = reinterpret_cast<const float4*>(x + blockIdx.y * (long long)n)[i];
    float* o = out + blockIdx.y * (long long)n + 4 * i;
    o[0] = 2 * v.x, o[1] = 2 * v.y, o[2] = 2 * v.z, o[3] = 2 * v.w;
}
