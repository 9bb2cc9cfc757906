// Attack: The last piece of a row is what remains after pieces of 1024: nothing, where the row is a multiple of that.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    x += (size_t)blockIdx.x * n;
    out += (size_t)blockIdx.x * n;
    const int n_rest = n % 1024, n_done = n_rest == 0 && n > 0 ? n - 1024 : n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = i < n_done ? 2.0f * x[i] : x[i];
}
