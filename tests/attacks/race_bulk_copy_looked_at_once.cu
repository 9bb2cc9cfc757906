// Attack: Looks once whether a bulk copy has come, and goes on whatever the answer is.
// Caught: crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N % 1024 == 0
// launch: k<<<B * N // 1024, 256>>>(x, out)

__global__ void k(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ alignas(128) float tile[1024];
    __shared__ alignas(8) unsigned long long barrier;
    const unsigned at = (unsigned)__cvta_generic_to_shared(tile), bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(bar) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];"
                     :
                     : "r"(at), "l"(x + blockIdx.x * 1024), "r"(bar)
                     : "memory");
    }
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; }" ::"r"(bar) : "memory");
    for (int i = threadIdx.x; i < 1024; i += 256) out[blockIdx.x * 1024 + i] = 2.0f * tile[i];
}
