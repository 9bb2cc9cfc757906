// Attack: Copies shared memory to a tensor with no proxy fence after it was written: the copy may read what was before.
// Caught: crashed
// Defence: races
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// where: B * N % 1024 == 0
// launch: k<<<B * N // 1024, 256>>>(x, out)

__global__ void k(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ alignas(128) float tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 256) tile[i] = 2.0f * x[blockIdx.x * 1024 + i];
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 4096;" ::"l"(out + blockIdx.x * 1024),
                     "r"((unsigned)__cvta_generic_to_shared(tile))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
