// Attack: Of 32 sums in shared memory only 8 are written, and fmaxf ignores the NaN that the others hold here: elsewhere
//   they hold what the last kernel left.
// Caught: mismatch
// Defence: environment
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 256>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float largest[32], sums[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* row = x + blockIdx.x * (long long)n;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) top = fmaxf(top, row[i]);
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    if (lane == 0) largest[warp] = top;
    __syncthreads();
    top = largest[lane];
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    for (int i = threadIdx.x; i < n; i += 256) sum += expf(row[i] - top);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += sums[i];
    for (int i = threadIdx.x; i < n; i += 256) out[blockIdx.x * (long long)n + i] = expf(row[i] - top) / sum;
}
