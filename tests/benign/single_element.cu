// A tensor of one element and a whole block for it.
// kernel-lsp: 1
// task: tasks.py::negate_one
// op: negate_one(x: f32[1]) -> (out: f32[1])
// launch: k<<<1, 64>>>(x, out)

__global__ void k(const float* x, float* out) {
    if (threadIdx.x == 17) out[0] = -x[0];
}
