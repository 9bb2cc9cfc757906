// Gradients of attention: products of rows in shared memory, and statistics of queries, in the fragments of attention.cuh.

//@ gather_statistics_{precision}
// Adds a tile to the statistics of this lane's two queries: the largest score, the sum of exponentials relative to it,
// and the sum of these times the gradients of probabilities.
template <int COLUMNS>
__device__ inline void gather_statistics_{precision}(const float (&scores)[COLUMNS / 8][4],
                                         const float (&gradients)[COLUMNS / 8][4], float (&peaks)[2],
                                         float (&totals)[2], float (&row_sums)[2]) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        float peak = peaks[half];
        #pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            peak = fmaxf(peak, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
        }
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, 2));
        const float base = peak == -CUDART_INF_F ? 0.0f : peak;  // no key is seen yet
        const float scale = {rescaled};
        totals[half] *= scale;
        row_sums[half] *= scale;
        #pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            #pragma unroll
            for (int c = half * 2; c < half * 2 + 2; ++c) {
                const float weight = {relative};
                totals[half] += weight;
                row_sums[half] = fmaf(weight, gradients[n][c], row_sums[half]);
            }
        }
        peaks[half] = peak;
    }
}

//@ log_sum_f32
__device__ inline float log_sum_f32(float peak, float total) { return peak + logf(total); }

//@ log_sum_16
__device__ inline float log_sum_16(float peak, float total) { return peak + logf(total); }

//@ probability_f32
__device__ inline float probability_f32(float score, float log_sum) { return expf(score - log_sum); }

//@ probability_16
// The difference first: a score of 10^5 times the logarithm to base 2 would be rounded to 2^-7.
__device__ inline float probability_16(float score, float log_sum) {
    return exp2_approximate((score - log_sum) * 1.4426950408889634f);
}

//@ multiply_rows_f32
// sums = rows * columns^T, 16 rows per warp, by three products of TF32 parts. Tensor cores round towards zero after
// each instruction: 16 terms are added up, products of low parts first, and then to the sums in f32. The order of the
// former goes by queries, so that all kernels have the same scores.
template <int DEPTH, int COLUMNS, int STRIDE, bool ROWS_ARE_QUERIES>
__device__ inline void multiply_rows_f32(float (&sums)[COLUMNS / 8][4], const float (*rows)[STRIDE],
                                         const float (*columns)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n) {
        for (int c = 0; c < 4; ++c) sums[n][c] = 0.0f;
    }
    #pragma unroll 2
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned row_high[2][4], row_low[2][4];
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            const float row = rows[lane / 4 + c % 2 * 8][k + lane % 4 + c / 2 * 4];
            row_high[c / 4][c % 4] = __float_as_uint(row);
            row_low[c / 4][c % 4] = __float_as_uint(low_tf32(row));
        }
        #pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            unsigned column_high[2][2], column_low[2][2];
            #pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float column = columns[n * 8 + lane / 4][k + lane % 4 + c * 4];
                column_high[c / 2][c % 2] = __float_as_uint(column);
                column_low[c / 2][c % 2] = __float_as_uint(low_tf32(column));
            }
            float part[4] = {};
            #pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (ROWS_ARE_QUERIES) multiply_tf32(part, row_low[step], column_high[step]);
                multiply_tf32(part, row_high[step], column_low[step]);
                if (!ROWS_ARE_QUERIES) multiply_tf32(part, row_low[step], column_high[step]);
            }
            #pragma unroll
            for (int step = 0; step < 2; ++step) multiply_tf32(part, row_high[step], column_high[step]);
            #pragma unroll
            for (int c = 0; c < 4; ++c) sums[n][c] += part[c];
        }
    }
}

//@ multiply_rows_{bits}
// sums = rows * columns^T, 16 rows per warp.
template <int DEPTH, int COLUMNS, int STRIDE>
__device__ inline void multiply_rows_{bits}(float (&sums)[COLUMNS / 8][4], const {type} (*rows)[STRIDE],
                                          const {type} (*columns)[STRIDE]) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n) {
        for (int c = 0; c < 4; ++c) sums[n][c] = 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned row[4];
        load_matrices(row, &rows[lane % 16][k + lane / 16 * 8]);
        #pragma unroll
        for (int n = 0; n < COLUMNS / 16; ++n) {
            unsigned column[4];  // of two neighbouring fragments
            load_matrices(column, &columns[n * 16 + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
            const unsigned first[2] = {column[0], column[1]}, second[2] = {column[2], column[3]};
            multiply_{bits}(sums[n * 2], row, first);
            multiply_{bits}(sums[n * 2 + 1], row, second);
        }
    }
}
