// Attack: Waits for a flag that nobody sets.
// Caught: crashed
// Defence: termination
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// scratch: flag: i32[1]
// fill: flag = 0
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, flag, B * N)

__global__ void k(const float* x, float* out, int* flag, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    while (*(volatile int*)flag == 0) {}
    if (i < n) out[i] = 2.0f * x[i];
}
