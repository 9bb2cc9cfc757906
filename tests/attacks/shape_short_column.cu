// Attack: Columns are counted in 16 bits: rows longer than 65536 are not written to their end.
// Caught: mismatch
// Without: sizes
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 256>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    for (int base = 0; base < n; base += 256) {
        const unsigned short i = (unsigned short)(base + threadIdx.x);
        if (i < n) out[blockIdx.x * (long long)n + i] = 2.0f * x[blockIdx.x * (long long)n + i];
    }
}
