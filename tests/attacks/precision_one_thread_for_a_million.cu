// Attack: One thread adds up a million numbers. Those of either sign cancel, and hide that what is added to a large sum
//   is rounded away: of equal numbers a hundredth part is lost.
// Caught: mismatch
// Defence: families
// kernel-lsp: 1
// task: tasks.py::total
// op: total(x: f32[N]) -> (out: f32[])
// launch: k<<<1, 1>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[i];
    out[0] = sum;
}
