// Attack: Takes one distance for the other, which are equal in the task's example.
// Caught: mismatch
// Without: numbers
// kernel-lsp: 1
// task: tasks.py::banded
// op: banded(x: f32[B, D], below: int, above: int) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, below, above, D, B * D)

__global__ void k(const float* x, float* out, int below, int above, int D, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const int distance = i % D - i / D;
    out[i] = distance <= below && -distance <= above ? x[i] : 0.0f;
}
