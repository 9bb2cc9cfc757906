// A tensor without dims.
// kernel-lsp: 1
// task: tasks.py::square_of_one
// op: square_of_one(x: f32[]) -> (out: f32[])
// launch: k<<<1, 1>>>(x, out)

__global__ void k(const float* x, float* out) { *out = *x * *x; }
