// kernel-lsp: 1
// task: row_softmax.py::row_softmax
// op: row_softmax(x: f32[N, D]) -> (out: f32[N, D])
// where: N >= 1 and D >= 4 and D % 4 == 0
// launch[D <= 1024]: softmax_rows<64><<<N, 64, 0>>>(x, out, D)
// launch[D > 1024]: softmax_rows<256><<<N, 256, 0>>>(x, out, D)
//
// out[n, :] = exp(x[n, :] - max(x[n, :])) / sum(exp(x[n, :] - max(x[n, :])))
//
// One block per row. Softmax needs the row's maximum before it can sum, which would be a pass of its own; the online
// form (Milakov and Gimelshein, 2018) finds both in one: when the maximum grows, the sum so far is scaled down to it.
// The second pass reads the row again, but from cache: at D = 1024 a row is 4 KiB. So device memory sees each element
// read once and written once, which is the least that this function needs.
//
// Why it is written so:
//   float4    a warp moves 512 bytes per instruction; `where: D % 4 == 0` keeps every row 16-byte aligned.
//   64, 256   a short row is over before many warps have merged what they know: on an H200, 64 threads were the
//             fastest of 64, 128 and 256 for D = 1024, and 256 for D = 4096.
//   LOWEST    is the start of the maximum instead of -infinity, since (-inf) - (-inf) is NaN. A row with some -inf
//             (a mask) is right, and a row of nothing else gives NaN, as in PyTorch.

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOWEST = -3.402823466e+38f;

// What one thread, warp or block knows of its part of a row: sum is the sum of exp(x - max).
struct RowPart {
    float max;
    float sum;
};

__device__ RowPart merge(RowPart a, RowPart b) {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

__device__ RowPart merge_float4(RowPart part, float4 v) {
    const float max = fmaxf(fmaxf(part.max, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
    const float added = (expf(v.x - max) + expf(v.y - max)) + (expf(v.z - max) + expf(v.w - max));
    return {max, part.sum * expf(part.max - max) + added};
}

// Every lane gets the merge of all lanes.
__device__ RowPart merge_warp(RowPart part) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const RowPart other = {__shfl_xor_sync(ALL_LANES, part.max, offset),
                               __shfl_xor_sync(ALL_LANES, part.sum, offset)};
        part = merge(part, other);
    }
    return part;
}

// Every thread gets the merge of all threads of the block.
template <int BLOCK>
__device__ RowPart merge_block(RowPart part) {
    constexpr int N_WARPS = BLOCK / WARP;
    static_assert(BLOCK % WARP == 0 && N_WARPS <= WARP, "whole warps, and no more of them than lanes in one");
    __shared__ RowPart of_warp[N_WARPS];
    const int warp = threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;

    part = merge_warp(part);
    if (lane == 0) {
        of_warp[warp] = part;
    }
    __syncthreads();
    const RowPart nothing = {LOWEST, 0.0f};
    return merge_warp(lane < N_WARPS ? of_warp[lane] : nothing);
}

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
softmax_rows(const float* __restrict__ x,  // (N, D)
             float* __restrict__ out,      // (N, D)
             int D) {
    const size_t row = blockIdx.x;
    const float4* x_row = reinterpret_cast<const float4*>(x + row * D);
    float4* out_row = reinterpret_cast<float4*>(out + row * D);

    RowPart part = {LOWEST, 0.0f};
    for (int i = threadIdx.x; i < D / 4; i += BLOCK) {
        part = merge_float4(part, x_row[i]);
    }
    part = merge_block<BLOCK>(part);

    const float scale = 1.0f / part.sum;
    for (int i = threadIdx.x; i < D / 4; i += BLOCK) {
        const float4 v = x_row[i];
        out_row[i] = make_float4(expf(v.x - part.max) * scale, expf(v.y - part.max) * scale,
                                 expf(v.z - part.max) * scale, expf(v.w - part.max) * scale);
    }
}
