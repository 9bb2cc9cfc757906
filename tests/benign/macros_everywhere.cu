// An X-macro, token pasting and stringification, all of it harmless.
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 4 * 128), 128>>>(x, y, out, B * N)

#define FOR_EACH_LANE(F) F(0) F(1) F(2) F(3)
#define NAME(prefix, i) prefix##_##i
#define LOAD(i) const float NAME(v, i) = at + i < n ? x[at + i] + y[at + i] : 0.0f;
#define STORE(i) if (at + i < n) out[at + i] = NAME(v, i) > 0.0f || NAME(v, i) != NAME(v, i) ? NAME(v, i) : 0.0f;

__global__ void k(const float* x, const float* y, float* out, int n) {
    const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    FOR_EACH_LANE(LOAD)
    FOR_EACH_LANE(STORE)
}
