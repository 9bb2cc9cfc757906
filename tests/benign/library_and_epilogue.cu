// The vendor's product, and a kernel for the rest of it.
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// scratch: product: f32[B, N]
// library: aten::linear(x, weight) -> (product)
// launch: k<<<ceil_div(B * N, 128), 128>>>(product, out, B * N)

__global__ void k(const float* product, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = product[i];
}
