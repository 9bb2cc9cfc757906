// kernel-lsp: 1
// task: cumulative_sum.py::cumulative_sum
// op: cumulative_sum(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 65535
// scratch: ends: f32[B, ceil_div(D, 64)]
// launch: chunk_ends<<<dim3(ceil_div(D, 64), B), 32>>>(x, ends, D)
// launch: scan_ends<<<ceil_div(B, 64), 64>>>(ends, B, ceil_div(D, 64))
// launch: finish<<<dim3(ceil_div(D, 64), B), 1>>>(x, ends, out, D)

__global__ void chunk_ends(const float* __restrict__ x, float* __restrict__ ends, int D) {
    const float* row = x + (size_t)blockIdx.y * D;
    const int at = blockIdx.x * 64 + threadIdx.x;
    float sum = (at < D ? row[at] : 0.0f) + (at + 32 < D ? row[at + 32] : 0.0f);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) ends[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void scan_ends(float* __restrict__ ends, int B, int n_chunks) {
    const int b = blockIdx.x * 64 + threadIdx.x;
    if (b >= B) return;
    for (int i = 1; i < n_chunks; ++i) ends[b * n_chunks + i] += ends[b * n_chunks + i - 1];
}

__global__ void finish(const float* __restrict__ x, const float* __restrict__ ends, float* __restrict__ out, int D) {
    const size_t base = (size_t)blockIdx.y * D;
    const float carry = ends[(int)(blockIdx.y * gridDim.x + blockIdx.x) - 1];
    float sum = blockIdx.x > 0 ? carry : 0.0f;
    for (int i = blockIdx.x * 64; i < min((int)blockIdx.x * 64 + 64, D); ++i) {
        sum += x[base + i];
        out[base + i] = sum;
    }
}
