// Attack: Asks for the next tile of a ring while loads of the last one may be under way: their values are used after
//   the barrier, and no proxy fence orders them before the copy. A kernel of this kind was wrong on an H200.
// Caught: crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N % 256 == 0
// launch: k<<<min(B * N // 256, 4), 256>>>(x, out, B * N // 256)

constexpr int STAGES = 2;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void fetch(float* tile, unsigned long long* full, const float* from) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at(full)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
                     at(tile)),
                 "l"(from), "r"(at(full))
                 : "memory");
}

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n_tiles) {
    __shared__ alignas(128) float ring[STAGES][256];
    __shared__ alignas(8) unsigned long long full[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full[s])) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int s = 0; s < STAGES; ++s) {
            const int tile = blockIdx.x + s * gridDim.x;
            if (tile < n_tiles) fetch(ring[s], &full[s], x + tile * 256);
        }
    }
    __syncthreads();
    int s = 0;
    unsigned parity = 0;
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        for (unsigned done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(at(&full[s])), "r"(parity)
                         : "memory");
        const float value = ring[s][threadIdx.x];
        const int ahead = tile + STAGES * gridDim.x;
        if (ahead < n_tiles) {
            __syncthreads();
            if (threadIdx.x == 0) fetch(ring[s], &full[s], x + ahead * 256);
        }
        out[tile * 256 + threadIdx.x] = 2.0f * value;
        if (++s == STAGES) {
            s = 0;
            parity ^= 1u;
        }
    }
}
