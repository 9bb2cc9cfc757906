// Attack: The producer does not wait until the consumer has read, which takes a third tile to show.
// Caught: crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::gelu_rows
// op: gelu_rows(x: f32[B, D]) -> (out: f32[B, D])
// launch: pc<<<min(B, 132), 256>>>(x, out, B, D)
//
// Warps 0-3 load tiles of 512 floats, warps 4-7 compute; two buffers. Barriers 1, 2: full; 3, 4: empty.

__device__ __forceinline__ void bar_sync(int id) { asm volatile("bar.sync %0, 256;" :: "r"(id) : "memory"); }
__device__ __forceinline__ void bar_arrive(int id) { asm volatile("bar.arrive %0, 256;" :: "r"(id) : "memory"); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

__global__ void __launch_bounds__(256) pc(const float* __restrict__ x, float* __restrict__ out, int B, int D) {
    __shared__ float buf[2][512];
    const int tiles = (D + 511) / 512;
    const int t = threadIdx.x & 127;
    const bool producer = threadIdx.x < 128;
    int stage = 0;
    for (int row = blockIdx.x; row < B; row += gridDim.x) {
        for (int k = 0; k < tiles; ++k, stage ^= 1) {
            const size_t base = (size_t)row * D;
            if (producer) {
                for (int i = t; i < 512; i += 128)
                    if (k * 512 + i < D) buf[stage][i] = x[base + k * 512 + i];
                __threadfence_block();
                bar_arrive(1 + stage);
            } else {
                bar_sync(1 + stage);
                for (int i = t; i < 512; i += 128)
                    if (k * 512 + i < D) out[base + k * 512 + i] = gelu(buf[stage][i]);
            }
        }
    }
}
