// Attack: Writes the next tile over one that a bulk copy may still read.
// Caught: crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N % 1024 == 0
// launch: k<<<B * N // 1024, 256>>>(x, out)

__global__ void k(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ alignas(128) float tile[256];
    for (int part = 0; part < 4; ++part) {
        const int first = blockIdx.x * 1024 + part * 256;
        __syncthreads();
        tile[threadIdx.x] = 2.0f * x[first + threadIdx.x];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + first),
                         "r"((unsigned)__cvta_generic_to_shared(tile))
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
