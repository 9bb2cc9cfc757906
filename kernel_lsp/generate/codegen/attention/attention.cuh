// A warp's 16 queries against a tile of keys and values, by `mma.sync`.
// A warp holds `scores` and `sums` as fragments of 16 x 8: entry c of a lane is at row `lane / 4 + c / 2 * 8` and column
// `lane % 4 * 2 + c % 2`. In f32 the keys that a fragment of weights multiplies are numbered so that no lane needs
// another's weights.

//@ opaque
// Hides a number from the compiler, which then computes nothing from it ahead.
__device__ inline int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

//@ exp2_approximate
// 2 to the power of a number, within 2^-22; tiny results are 0. Enough for weights that are rounded to 16 bits.
__device__ inline float exp2_approximate(float value) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

//@ weigh_scores_{precision}
// Turns scores into weights relative to the largest score so far of each query, and scales what is summed so far to it.
template <int KEYS, int HEAD>
__device__ inline void weigh_scores_{precision}(float (&scores)[KEYS / 8][4], float (&peaks)[2], float (&totals)[2],
                                    float (&sums)[HEAD / 8][4]) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        float peak = peaks[half];
        #pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) peak = fmaxf(peak, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, 2));
        const float base = peak == -CUDART_INF_F ? 0.0f : peak;  // no key is seen yet
        const float scale = {rescaled};
        totals[half] *= scale;
        #pragma unroll
        for (int n = 0; n < HEAD / 8; ++n) {
            sums[n][half * 2] *= scale;
            sums[n][half * 2 + 1] *= scale;
        }
{shifted}        #pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            #pragma unroll
            for (int c = half * 2; c < half * 2 + 2; ++c) {
                scores[n][c] = {weight};
                totals[half] += scores[n][c];
            }
        }
        peaks[half] = peak;
    }
}

//@ combine_totals
// The sums of weights over the four lanes that share a query.
__device__ inline void combine_totals(float (&totals)[2]) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        totals[half] += __shfl_xor_sync(0xffffffff, totals[half], 1);
        totals[half] += __shfl_xor_sync(0xffffffff, totals[half], 2);
    }
}

//@ multiply_values_f32
// sums += weights * values. Columns 2 j and 2 j + 1 of a fragment of weights are rows j and j + 4 of the product. A
// tile is added up by itself, and then to the sums in f32.
template <int HEAD, int KEYS, int STRIDE>
__device__ inline void multiply_values_f32(float (&sums)[HEAD / 8][4], const float (&weights)[KEYS / 8][4],
                                           const float (*values)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    unsigned weight_high[KEYS / 8][4], weight_low[KEYS / 8][4];
    #pragma unroll
    for (int step = 0; step < KEYS / 8; ++step) {
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float weight = weights[step][c / 2 + c % 2 * 2];
            split_tf32(__float_as_uint(weight), weight_high[step][c], weight_low[step][c]);
        }
    }
    #pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
        float large[4] = {}, small[4] = {};
        #pragma unroll
        for (int step = 0; step < KEYS / 8; ++step) {
            unsigned value_high[2], value_low[2];
            #pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float value = values[step * 8 + lane % 4 * 2 + c][n * 8 + lane / 4];
                split_tf32(__float_as_uint(value), value_high[c], value_low[c]);
            }
            multiply_tf32(small, weight_low[step], value_high);
            multiply_tf32(small, weight_high[step], value_low);
            multiply_tf32(large, weight_high[step], value_high);
        }
        #pragma unroll
        for (int c = 0; c < 4; ++c) sums[n][c] += large[c] + small[c];
    }
}

//@ load_queries_{bits}
// The 16 rows of a warp as left factors of m16n8k16: pairs of neighbours.
template <int HEAD, int STRIDE>
__device__ inline void load_queries_{bits}(unsigned (&queries)[HEAD / 16][4], const {type} (*rows)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int step = 0; step < HEAD / 16; ++step) {
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const {type}* at = &rows[lane / 4 + c % 2 * 8][step * 16 + lane % 4 * 2 + c / 2 * 8];
            queries[step][c] = *reinterpret_cast<const unsigned*>(at);
        }
    }
}

//@ multiply_keys_{bits}
// scores = queries * keys^T.
template <int HEAD, int KEYS, int STRIDE>
__device__ inline void multiply_keys_{bits}(float (&scores)[KEYS / 8][4], const unsigned (&queries)[HEAD / 16][4],
                                          const {type} (*keys)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
        for (int c = 0; c < 4; ++c) scores[n][c] = 0.0f;
        #pragma unroll
        for (int step = 0; step < HEAD / 16; ++step) {
            unsigned key[2];
            #pragma unroll
            for (int c = 0; c < 2; ++c) {
                const {type}* at = &keys[n * 8 + lane / 4][step * 16 + lane % 4 * 2 + c * 8];
                key[c] = *reinterpret_cast<const unsigned*>(at);
            }
            multiply_{bits}(scores[n], queries[step], key);
        }
    }
}

//@ multiply_values_{bits}
// sums += weights * values.
template <int HEAD, int KEYS, int STRIDE>
__device__ inline void multiply_values_{bits}(float (&sums)[HEAD / 8][4], const float (&weights)[KEYS / 8][4],
                                            const {type} (*values)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) {
        unsigned weight[4];
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float* two = &weights[step * 2 + c / 2][c % 2 * 2];
            const {pair} rounded = {to_pair}(two[0], two[1]);
            memcpy(&weight[c], &rounded, 4);
        }
        #pragma unroll
        for (int n = 0; n < HEAD / 16; ++n) {
            unsigned value[4];  // of two neighbouring fragments
            load_transposed(value, &values[step * 16 + lane % 16][n * 16 + lane / 16 * 8]);
            const unsigned first[2] = {value[0], value[1]}, second[2] = {value[2], value[3]};
            multiply_{bits}(sums[n * 2], weight, first);
            multiply_{bits}(sums[n * 2 + 1], weight, second);
        }
    }
}
