// A table in device memory, which is only read.
// kernel-lsp: 1
// task: tasks.py::gelu
// op: gelu(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ const float coefficients[4] = {0.5f, 0.7978845608f, 0.044715f, 1.0f};

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i], u = coefficients[1] * (v + coefficients[2] * v * v * v);
    out[i] = coefficients[0] * v * (coefficients[3] + tanhf(u));
}
