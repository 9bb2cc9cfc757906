// Attack: Two sums of a block share one array, and nothing keeps the second from overwriting what another warp has not
//   read yet.
// Caught: mismatch crashed
// Defence: orders
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<B, 128>>>(x, out, N)

__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[4];
    const float* row = x + blockIdx.x * (long long)n;
    const int warp = threadIdx.x / 32;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 128) largest = fmaxf(largest, row[i]);
    for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (threadIdx.x % 32 == 0) part[warp] = largest;
    __syncthreads();
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, part[i]);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += expf(row[i] - largest);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) part[warp] = sum;
    __syncthreads();
    sum = part[0] + part[1] + part[2] + part[3];
    for (int i = threadIdx.x; i < n; i += 128) out[blockIdx.x * (long long)n + i] = expf(row[i] - largest) / sum;
}
