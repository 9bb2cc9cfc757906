// kernel-lsp: 1
// task: rms_norm.py::rms_norm
// op: rms_norm(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// launch: rms_tile<128><<<B, 128>>>(x, weight, out, D)

namespace cg = cooperative_groups;

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
rms_tile(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int D) {
    __shared__ float sums[BLOCK / 32];
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    const float* row = x + (size_t)blockIdx.x * D;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) sum += row[i] * row[i];
    for (int offset = warp.size() / 2; offset > 0; offset /= 2) sum += warp.shfl_down(sum, offset);
    if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = sum;
    block.sync();
    float total = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) total += sums[i];
    const float scale = rsqrtf(total / D + 1e-6f);
    for (int i = threadIdx.x; i < D; i += BLOCK) out[(size_t)blockIdx.x * D + i] = row[i] * scale * weight[i];
}
