// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// where: D <= 4096
// launch: split_roles<<<B, 128, D * 4>>>(x, weight, out, D)

__global__ void __launch_bounds__(128)
split_roles(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int D) {
    extern __shared__ float staged[];
    __shared__ float sums[3];
    __shared__ float scale;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* row = x + (size_t)blockIdx.x * D;
    if (warp == 3) {
        for (int i = lane; i < D; i += 32) staged[i] = weight[i];
    } else {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < D; i += 96) sum = fmaf(row[i], row[i], sum);
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (lane == 0) sums[warp] = sum;
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x == 0) scale = rsqrtf((sums[0] + sums[1] + sums[2]) / D + 1e-6f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += 128) out[(size_t)blockIdx.x * D + i] = row[i] * scale * staged[i];
}
