// An inclusive scan by shuffles that carries on from chunk to chunk.
// kernel-lsp: 1
// task: tasks.py::cumulative
// op: cumulative(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 32>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    float carried = 0.0f;
    for (int base = 0; base < n; base += 32) {
        const int i = base + threadIdx.x;
        float v = i < n ? x[blockIdx.x * (long long)n + i] : 0.0f;
        for (int offset = 1; offset < 32; offset *= 2) {
            const float left = __shfl_up_sync(0xffffffffu, v, offset);
            if (threadIdx.x >= offset) v += left;
        }
        if (i < n) out[blockIdx.x * (long long)n + i] = carried + v;
        carried += __shfl_sync(0xffffffffu, v, 31);
    }
}
