// The maximum of floats by a loop around a compare-and-swap, whose first guess is a plain load.
// kernel-lsp: 1
// task: tasks.py::largest
// op: largest(x: f32[B, N]) -> (out: f32[B])
// launch: k<<<B, 64>>>(x, out, N)

__device__ void raise_to(float* place, float value) {
    int* bits = reinterpret_cast<int*>(place);
    int old = *bits, assumed;
    do {
        assumed = old;
        const float best = __int_as_float(assumed);
        old = atomicCAS(bits, assumed, __float_as_int(value > best || value != value ? value : best));
    } while (old != assumed);
}

__global__ void k(const float* x, float* out, int n) {
    __shared__ float largest;
    if (threadIdx.x == 0) largest = -INFINITY;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 64) raise_to(&largest, x[blockIdx.x * (long long)n + i]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = largest;
}
