// Tiles in dynamic shared memory at a multiple of 1024 bytes, found by way of its address.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256, 3072>>>(x, out, B * N)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    extern __shared__ char memory[];
    __shared__ float factor;
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory), aligned = (address + 1023) & ~1023u;
    float* tile = (float*)(memory + (aligned - address));
    const int i = blockIdx.x * blockDim.x + threadIdx.x, place = threadIdx.x ^ ((aligned >> 7) & 7);
    if (threadIdx.x == 0) factor = 2.0f;
    if (i < n) tile[place] = x[i];
    asm volatile("st.shared.f32 [%0 + 1024], %1;" ::"r"(aligned + 4 * threadIdx.x), "f"(1.0f) : "memory");
    __syncthreads();
    float one;
    asm volatile("ld.shared.f32 %0, [%1 + 1024];" : "=f"(one) : "r"(aligned + 4 * (255 - threadIdx.x)) : "memory");
    if (i < n) out[i] = factor * tile[place] * one;
}
