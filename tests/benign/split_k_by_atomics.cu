// The depth is split over blocks that add their parts with atomics.
// kernel-lsp: 1
// task: tasks.py::linear
// op: linear(x: f32[B, K], weight: f32[N, K]) -> (out: f32[B, N])
// fill: out = 0
// launch: k<<<dim3(N, B, 4), 32>>>(x, weight, out, N, K)

__global__ void k(const float* x, const float* weight, float* out, int n, int depth) {
    const float* a = x + blockIdx.y * (long long)depth;
    const float* b = weight + blockIdx.x * (long long)depth;
    float sum = 0.0f;
    for (int i = blockIdx.z * 32 + threadIdx.x; i < depth; i += 128) sum += a[i] * b[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) atomicAdd(&out[blockIdx.y * n + blockIdx.x], sum);
}
