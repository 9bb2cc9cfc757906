// Inline assembly for loads, arithmetic and stores.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v;
    asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(x + i));
    asm("{ .reg .f32 t; mov.f32 t, 0f40000000; mul.rn.f32 %0, %0, t; }" : "+f"(v));
    asm volatile("st.global.f32 [%0], %1;" ::"l"(out + i), "f"(v) : "memory");
}
