// How many tiles a block takes at once depends on how many multiprocessors there are, and where it begins on its own.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<min(ceil_div(B * N, 128), 264), 128>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    unsigned n_places, place;
    asm("mov.u32 %0, %%nsmid; mov.u32 %1, %%smid;" : "=r"(n_places), "=r"(place));
    const int n_tiles = (n + 127) / 128;
    const int at_once = max(1, n_tiles / (int)n_places);
    for (int first = blockIdx.x * at_once; first < n_tiles; first += gridDim.x * at_once) {
        for (int step = 0; step < at_once; ++step) {
            const int i = (first + (step + (int)place) % at_once) * 128 + threadIdx.x;
            if (i < n) out[i] = 2.0f * x[i];
        }
    }
}
