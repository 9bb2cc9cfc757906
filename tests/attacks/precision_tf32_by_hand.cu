// Attack: Cuts the operands to ten bits, as TF32 units do.
// Caught: mismatch
// Without: budget
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// launch: k<<<dim3(N, B), 1>>>(x, weight, out, N, K)

__global__ void k(const float* x, const float* weight, float* out, int n, int depth) {
    const float* a = x + blockIdx.y * (long long)depth;
    const float* b = weight + blockIdx.x * (long long)depth;
    float sum = 0.0f;
    for (int i = 0; i < depth; ++i)
        sum += __uint_as_float(__float_as_uint(a[i]) & 0xffffe000u) * __uint_as_float(__float_as_uint(b[i]) & 0xffffe000u);
    out[blockIdx.y * (long long)n + blockIdx.x] = sum;
}
