// Bulk copies into a ring of three tiles, with barriers that say full and empty, and out of two others.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N % 1024 == 0
// launch: k<<<min(B * N // 1024, 5), 160>>>(x, out, B * N // 1024)

constexpr int STAGES = 3, TILE = 1024, CONSUMERS = 128;
constexpr unsigned TILE_BYTES = TILE * sizeof(float);

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait(unsigned long long* barrier, unsigned parity) {
    unsigned is_over = 0;
    while (!is_over) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_over)
                     : "r"(at(barrier)), "r"(parity)
                     : "memory");
    }
}

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n_tiles) {
    __shared__ alignas(128) float in[STAGES][TILE], result[2][TILE];
    __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full[s])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(at(&empty[s])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x > CONSUMERS) return;
        int turn = 0;
        for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, ++turn) {
            const int s = turn % STAGES;
            if (turn >= STAGES) wait(&empty[s], (turn / STAGES - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&full[s])), "r"(TILE_BYTES)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         :
                         : "r"(at(in[s])), "l"(x + (size_t)tile * TILE), "r"(TILE_BYTES), "r"(at(&full[s]))
                         : "memory");
        }
        return;
    }
    int turn = 0;
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, ++turn) {
        const int s = turn % STAGES;
        float* mine = result[turn % 2];
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        wait(&full[s], (turn / STAGES) & 1);
        for (int i = threadIdx.x; i < TILE; i += CONSUMERS) mine[i] = 2.0f * in[s][i];
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&empty[s])) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + (size_t)tile * TILE),
                         "r"(at(mine)), "r"(TILE_BYTES)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
