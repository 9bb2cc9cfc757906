// Attention by `wgmma`: products of four warps' 64 rows with split tiles in shared memory, for sm_90a alone.
// A split tile is its high parts, which are the numbers as they are, and its low parts. A column of a product is a row of
// a tile: 32 terms in 128 swizzled bytes, and further terms in further arrays.

//@ split_tile
// The low parts of COUNT numbers, by the first THREADS threads.
template <int COUNT, int THREADS>
__device__ inline void split_tile(float* low, const float* tile) {
    #pragma unroll 4
    for (int e = threadIdx.x * 4; e < COUNT; e += THREADS * 4) {
        Pack<float, 4> part = *packs<4>(tile + e);
        #pragma unroll
        for (int c = 0; c < 4; ++c) part.item[c] = low_tf32(part.item[c]);
        *packs<4>(low + e) = part;
    }
}

//@ transpose_tile
// Splits a tile whose ROWS rows become terms: of 8, first those with an even number, then the others. So a lane's part
// of scores is its part of their product with the tile.
template <int ROWS, int WIDTH, int THREADS>
__device__ inline void transpose_tile(float (*high)[WIDTH][32], float (*low)[WIDTH][32],
                                      const float (*tile)[WIDTH]) {
    #pragma unroll 4
    for (int e = threadIdx.x; e < ROWS * WIDTH / 4; e += THREADS) {
        const int n = e % WIDTH, term = e / WIDTH * 4, row = term / 8 * 8 + term / 4 % 2;
        const int place = term % 32 ^ n % 8 * 4;
        Pack<float, 4> part;
        #pragma unroll
        for (int c = 0; c < 4; ++c) part.item[c] = tile[row + c * 2][n];
        *packs<4>(&high[term / 32][n][place]) = part;
        #pragma unroll
        for (int c = 0; c < 4; ++c) part.item[c] = low_tf32(part.item[c]);
        *packs<4>(&low[term / 32][n][place]) = part;
    }
}

//@ turn_tile
// The same for 32 rows that are swizzled.
template <int WIDTH, int THREADS>
__device__ inline void turn_tile(float (*high)[32], float (*low)[32], const float (*tile)[32][32]) {
    #pragma unroll 4
    for (int e = threadIdx.x; e < WIDTH * 8; e += THREADS) {
        const int n = e % WIDTH, term = e / WIDTH * 4, row = term / 8 * 8 + term / 4 % 2;
        const int place = term ^ n % 8 * 4;
        Pack<float, 4> part;
        #pragma unroll
        for (int c = 0; c < 4; ++c) part.item[c] = tile[n / 32][row + c * 2][n % 32 ^ (row + c * 2) % 8 * 4];
        *packs<4>(&high[n][place]) = part;
        #pragma unroll
        for (int c = 0; c < 4; ++c) part.item[c] = low_tf32(part.item[c]);
        *packs<4>(&low[n][place]) = part;
    }
}

//@ multiply_group_rows_{count}
// sums = rows * tile^T for the 16 rows of each warp, STRIDE apart, or swizzled in arrays of STRIDE rows. Tensor cores
// round towards zero after each instruction: 16 terms are added up, products of low parts first, and then to the sums
// in f32. The order of the former goes by queries, so that all kernels have the same scores.
template <int DEPTH, int STRIDE, bool IS_SWIZZLED, bool ROWS_ARE_QUERIES>
__device__ inline void multiply_group_rows_{count}(float (&sums)[{count/8}][4], const float* rows,
                                              const float (*high)[{count}][32], const float (*low)[{count}][32]) {
    const int lane = threadIdx.x % 32;
    float parts[2][{count/8}][4];
    auto high_tiles = describe_tile(high), low_tiles = describe_tile(low);
    asm volatile("" : "+l"(high_tiles), "+l"(low_tiles));  // what follows from them is not kept from tile to tile
    #pragma unroll
    for (int n = 0; n < {count/8}; ++n) {
        for (int c = 0; c < 4; ++c) sums[n][c] = 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < DEPTH + 16; k += 16) {
        if (k < DEPTH) {
            unsigned row_high[2][4], row_low[2][4];
            #pragma unroll
            for (int step = 0; step < 2; ++step) {
                const int place = k + step * 8 + lane / 16 * 4;
                load_matrices(row_high[step], rows + (IS_SWIZZLED ? (k / 32 * STRIDE + lane % 16) * 32
                                                                        + (place % 32 ^ lane % 8 * 4)
                                                                  : lane % 16 * STRIDE + place));
                #pragma unroll
                for (int c = 0; c < 4; ++c) {
                    row_low[step][c] = __float_as_uint(low_tf32(__uint_as_float(row_high[step][c])));
                }
            }
            auto& part = parts[k / 16 % 2];
            const auto high_tile = high_tiles + (k / 32 * {count*32} + k % 32) / 4;
            const auto low_tile = low_tiles + (k / 32 * {count*32} + k % 32) / 4;
            begin_products();
            #pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (ROWS_ARE_QUERIES) multiply_warpgroup_{count}(part, row_low[step], high_tile + step * 2, step > 0);
                multiply_warpgroup_{count}(part, row_high[step], low_tile + step * 2, !ROWS_ARE_QUERIES ? step > 0 : true);
                if (!ROWS_ARE_QUERIES) multiply_warpgroup_{count}(part, row_low[step], high_tile + step * 2, true);
            }
            #pragma unroll
            for (int step = 0; step < 2; ++step) multiply_warpgroup_{count}(part, row_high[step], high_tile + step * 2, true);
            commit_products();
        }
        if (k == 0) continue;
        if (k < DEPTH) {
            wait_for_products<1>();
        } else {
            wait_for_products<0>();
        }
        auto& done = parts[k / 16 % 2 ^ 1];
        #pragma unroll
        for (int c = 0; c < {count/2}; ++c) {
            asm volatile("" : "+f"(done[c / 4][c % 4])::"memory");  // not to be read before
            sums[c / 4][c % 4] += done[c / 4][c % 4];
        }
    }
}

//@ multiply_group_values_{count}
// sums += weights * tile^T, {count} columns at a time. The terms of the tile are numbered as `transpose_tile` does.
// Products of low parts come first, while the sum is small: tensor cores round towards zero after each instruction.
template <int WIDTH, int TERMS>
__device__ inline void multiply_group_values_{count}(float (&sums)[WIDTH / 8][4], const float (&weights)[TERMS / 8][4],
                                                const float (*high)[WIDTH][32], const float (*low)[WIDTH][32]) {
    auto high_tiles = describe_tile(high), low_tiles = describe_tile(low);
    asm volatile("" : "+l"(high_tiles), "+l"(low_tiles));  // what follows from them is not kept from tile to tile
    unsigned weight_high[TERMS / 8][4], weight_low[TERMS / 8][4];
    #pragma unroll
    for (int c = 0; c < TERMS / 2; ++c) {
        const float weight = weights[c / 4][c % 4 / 2 + c % 2 * 2];
        weight_high[c / 4][c % 4] = __float_as_uint(weight);
        weight_low[c / 4][c % 4] = __float_as_uint(low_tf32(weight));
    }
    #pragma unroll
    for (int first = 0; first < WIDTH; first += {count}) {
        float part[{count/8}][4];
        begin_products();
        #pragma unroll
        for (int step = 0; step < TERMS / 8; ++step) {
            const int place = (step / 4 * WIDTH * 32 + first * 32 + step % 4 * 8) / 4;
            multiply_warpgroup_{count}(part, weight_low[step], high_tiles + place, step > 0);
            multiply_warpgroup_{count}(part, weight_high[step], low_tiles + place, true);
        }
        #pragma unroll
        for (int step = 0; step < TERMS / 8; ++step) {
            const int place = (step / 4 * WIDTH * 32 + first * 32 + step % 4 * 8) / 4;
            multiply_warpgroup_{count}(part, weight_high[step], high_tiles + place, true);
        }
        commit_products();
        wait_for_products<0>();
        #pragma unroll
        for (int c = 0; c < {count/2}; ++c) {
            asm volatile("" : "+f"(part[c / 4][c % 4])::"memory");  // not to be read before
            sums[first / 8 + c / 4][c % 4] += part[c / 4][c % 4];
        }
    }
}
