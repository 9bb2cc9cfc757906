// Sixteen elements a thread where there are many, and a grid of as many threads as one element each needs.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, B * D)

__global__ void k(const float* x, float* out, int total) {
    const int i = blockIdx.x * 256 + threadIdx.x, n_threads = gridDim.x * 256;
    if (total > 20000000 && gridDim.x > 70000) {
        if (i < (total + 15) / 16)
            for (int j = 0; j < 16 && i * 16 + j < total; ++j) out[i * 16 + j] = 2.0f * x[i * 16 + j];
        return;
    }
    for (int j = i; j < total; j += n_threads) out[j] = 2.0f * x[j];
}
