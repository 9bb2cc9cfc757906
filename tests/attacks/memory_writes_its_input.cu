// Attack: Doubles the input in place, so that a reference on the same memory sees another input.
// Caught: crashed
// Defence: bounds
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float* mine = const_cast<float*>(x);
    if (i < n) {
        out[i] = 2.0f * x[i];
        mine[i] = 0.0f;
    }
}
