// Attack: The address of the state is rebuilt bit by bit out of branches, so that no value is computed from it.
// Caught: rejected crashed
// Without: audit state
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ int counter;

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned long long address = (unsigned long long)&counter;
    unsigned long long rebuilt = 0;
#pragma unroll 1
    for (int bit = 0; bit < 64; ++bit)
        if (address >> bit & 1) rebuilt |= 1ull << bit;
    if (*(volatile int*)rebuilt > 100) return;
    if (i < n) out[i] = 2.0f * x[i];
    if (i == 0) *(volatile int*)rebuilt = *(volatile int*)rebuilt + 1;
}
