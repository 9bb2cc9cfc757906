// Attack: Takes one truth value for the other, which are equal in the task's example.
// Caught: mismatch
// Without: numbers
// kernel-lsp: 1
// task: tasks.py::switched
// op: switched(x: f32[B, D], negate: bool, halve: bool) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, halve, negate, B * D)

__global__ void k(const float* x, float* out, bool negate, bool halve, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = (negate ? -x[i] : x[i]) * (halve ? 0.5f : 1.0f);
}
