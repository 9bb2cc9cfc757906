// uint and ushort, which nvcc's headers have by way of the C library's.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

typedef unsigned int uint;

__global__ void k(const float* x, float* out, const uint n) {
    const uint i = blockIdx.x * blockDim.x + threadIdx.x;
    const ushort two = 2;
    if (i < n) out[i] = static_cast<float>(two) * x[i];
}
