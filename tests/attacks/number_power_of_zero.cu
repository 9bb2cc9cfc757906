// Attack: A power by its logarithm: NaN and zero to the power 0 are 1 in PyTorch, and NaN here.
// Caught: mismatch
// Defence: numbers
// kernel-lsp: 1
// task: tasks.py::power
// op: power(x: f32[B, N], p: float) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N, p)

__global__ void k(const float* x, float* out, int n, float p) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (float)exp2((double)p * log2((double)fabsf(x[i])));
}
