// Reductions over the threads of a warp, a block or a column, and parts of pairs.

//@ warp_sum
// Every one of WIDTH neighbouring lanes gets the sum of all.
template <int WIDTH>
__device__ inline {T} warp_sum({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step, WIDTH);
    return value;
}

//@ warp_sum:int

// Every one of WIDTH neighbouring lanes gets the sum of all; of a whole warp, by one instruction.
template <int WIDTH>
__device__ inline int warp_sum(int value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step, WIDTH);
    return value;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ inline int warp_sum<32>(int value) { return __reduce_add_sync(0xffffffff, value); }
#endif


//@ warp_prod
template <int WIDTH>
__device__ inline {T} warp_prod({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) value *= __shfl_xor_sync(0xffffffff, value, step, WIDTH);
    return value;
}

//@ warp_max
template <int WIDTH>
__device__ inline {T} warp_max({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        value = maximum(value, __shfl_xor_sync(0xffffffff, value, step, WIDTH));
    }
    return value;
}

//@ warp_min
template <int WIDTH>
__device__ inline {T} warp_min({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        value = minimum(value, __shfl_xor_sync(0xffffffff, value, step, WIDTH));
    }
    return value;
}

//@ warp_argmax
// Every lane gets the best value of all and its index.
template <int WIDTH>
__device__ inline void warp_argmax({T}& best, int& best_index) {
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        const {T} other = __shfl_xor_sync(0xffffffff, best, step, WIDTH);
        const int other_index = __shfl_xor_sync(0xffffffff, best_index, step, WIDTH);
        if (comes_before(other, other_index, best, best_index)) {
            best = other;
            best_index = other_index;
        }
    }
}

//@ block_{kind}
// Every thread of a block of THREADS gets the {word} over all.
template <int THREADS>
__device__ inline {T} block_{kind}({T} value) {
    __shared__ {T} of_warp[32];
    value = warp_{kind}<32>(value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[threadIdx.x % (THREADS / 32)];
    __syncthreads();
    return warp_{kind}<THREADS / 32>(value);
}

//@ block_{several}
// Every thread of a block of THREADS gets the {several} over all, for two barriers instead of two each.
template <int THREADS, typename... Others>
__device__ inline void block_{several}({T}& first, Others&... others) {
    constexpr int N = 1 + sizeof...(Others);
    __shared__ {T} of_warp[N][32];
    {T} values[N] = {first, others...};
    #pragma unroll
    for (int n = 0; n < N; ++n) {
        values[n] = warp_{one}<32>(values[n]);
        if (threadIdx.x % 32 == 0) of_warp[n][threadIdx.x / 32] = values[n];
    }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < N; ++n) values[n] = of_warp[n][threadIdx.x % (THREADS / 32)];
    __syncthreads();
    first = warp_{one}<THREADS / 32>(values[0]);
    int n = 1;
    ((others = warp_{one}<THREADS / 32>(values[n++])), ...);
}

//@ block_argmax
template <int THREADS>
__device__ inline void block_argmax({T}& best, int& best_index) {
    __shared__ {T} of_warp[32];
    __shared__ int index_of_warp[32];
    warp_argmax<32>(best, best_index);
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = best;
        index_of_warp[threadIdx.x / 32] = best_index;
    }
    __syncthreads();
    best = of_warp[threadIdx.x % (THREADS / 32)];
    best_index = index_of_warp[threadIdx.x % (THREADS / 32)];
    __syncthreads();
    warp_argmax<THREADS / 32>(best, best_index);
}

//@ column_{kind}
// Combines threads that are WIDTH apart; every thread gets the result of its column.
template <int LANES, int WIDTH>
__device__ inline {T} column_{kind}({T} value) {
    __shared__ {T} of_lane[LANES][WIDTH];
    const int column = threadIdx.x % WIDTH;
    of_lane[threadIdx.x / WIDTH][column] = value;
    __syncthreads();
    {T} result = of_lane[0][column];
    for (int lane = 1; lane < LANES; ++lane) {combine_lane}
    __syncthreads();
    return result;
}

//@ column_sums
// Adds up the arrays of threads that are WIDTH apart; those of the first WIDTH threads get the sums of their column.
template <int LANES, int WIDTH, int N>
__device__ inline void column_sums({T} (&values)[N]) {
    __shared__ {T} of_lane[LANES][N * WIDTH];
    const int column = threadIdx.x % WIDTH;
    #pragma unroll
    for (int n = 0; n < N; ++n) of_lane[threadIdx.x / WIDTH][n * WIDTH + column] = values[n];
    __syncthreads();
    for (int i = threadIdx.x; i < N * WIDTH; i += LANES * WIDTH) {
        {T} sum = of_lane[0][i];
        for (int lane = 1; lane < LANES; ++lane) sum += of_lane[lane][i];
        of_lane[0][i] = sum;
    }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < N; ++n) values[n] = of_lane[0][n * WIDTH + column];
    __syncthreads();
}

//@ column_argmax
template <int LANES, int WIDTH>
__device__ inline void column_argmax({T}& best, int& best_index) {
    __shared__ {T} of_lane[LANES][WIDTH];
    __shared__ int index_of_lane[LANES][WIDTH];
    const int column = threadIdx.x % WIDTH;
    of_lane[threadIdx.x / WIDTH][column] = best;
    index_of_lane[threadIdx.x / WIDTH][column] = best_index;
    __syncthreads();
    for (int lane = 0; lane < LANES; ++lane) {
        if (comes_before(of_lane[lane][column], index_of_lane[lane][column], best, best_index)) {
            best = of_lane[lane][column];
            best_index = index_of_lane[lane][column];
        }
    }
    __syncthreads();
}

//@ parts_{kind}
// Every thread gets the {word} of what the blocks of its row found.
template <int BLOCKS>
__device__ inline {T} parts_{kind}(const {T}* parts) {
    {T} value = parts[threadIdx.x % 32 % BLOCKS];
    for (int part = threadIdx.x % 32 + 32; part < BLOCKS; part += 32) {combine_part}
    {start}return warp_{kind}<32>(value);
}

//@ part_shift
// How far a row's maximum is above that of a part, negative, or above 0 where that is -inf.
__device__ inline float part_shift(float part_peak, float peak) {
    return (part_peak == -CUDART_INF_F ? 0.0f : part_peak) - peak;
}

//@ parts_exponentials
// The sum of exponentials relative to `peak`, of sums that are relative to the maximum of a block each.
template <int BLOCKS>
__device__ inline float parts_exponentials(const float* sums, const float* peaks, float peak) {
    float sum = 0.0f;
    for (int part = threadIdx.x % 32; part < BLOCKS; part += 32) sum += sums[part] * expf(peaks[part] - peak);
    return warp_sum<32>(sum);
}

//@ parts_squares
// The sum of squared distances from `mean`, of sums that are relative to the mean of a block each (Chan et al.).
template <int BLOCKS, int THREADS, int N>
__device__ inline float parts_squares(const float* squares, const float* sums, float mean, int n_packs) {
    float total = 0.0f;
    for (int part = threadIdx.x % 32; part < BLOCKS; part += 32) {
        const float count = (float)share_of<BLOCKS, THREADS>(n_packs, part) * N;
        const float distance = sums[part] / fmaxf(count, 1.0f) - mean;
        total += squares[part] + count * distance * distance;
    }
    return warp_sum<32>(total);
}

//@ block_moments
// The first warp gets the sum over a block of THREADS, and the sum of squared distances from its mean, where `sum` and
// `squares` are a warp's own, of `count` elements, and relative to its mean (Chan et al.). One barrier serves both.
template <int THREADS>
__device__ inline void block_moments(float& sum, float& squares, float count) {
    __shared__ float of_warp[2][32];
    squares = warp_sum<32>(squares);
    if (threadIdx.x % 32 == 0) {
        of_warp[0][threadIdx.x / 32] = sum;
        of_warp[1][threadIdx.x / 32] = squares;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float own = of_warp[0][threadIdx.x % (THREADS / 32)];
    sum = warp_sum<THREADS / 32>(own);
    const float distance = own / count - sum / (count * (THREADS / 32));
    squares = of_warp[1][threadIdx.x % (THREADS / 32)] + count * distance * distance;
    squares = warp_sum<THREADS / 32>(squares);
}

//@ parts_moments
// The sum of what the blocks of a row found, and the sum of squared distances from the row's mean, where each block has
// `count` elements and squares relative to its own mean (Chan et al.). All loads are in flight together.
template <int BLOCKS>
__device__ inline void parts_moments(const float* sums, const float* parts, float count, float& sum, float& squares) {
    constexpr int N = (BLOCKS + 31) / 32;
    float own[N], own_squares[N];
    #pragma unroll
    for (int n = 0; n < N; ++n) {
        const int part = n * 32 + threadIdx.x % 32;
        own[n] = part < BLOCKS ? sums[part] : 0.0f;
        own_squares[n] = part < BLOCKS ? parts[part] : 0.0f;
    }
    sum = 0.0f;
    for (int n = 0; n < N; ++n) sum += own[n];
    sum = warp_sum<32>(sum);
    squares = 0.0f;
    for (int n = 0; n < N; ++n) {
        const float distance = own[n] / count - sum / (count * BLOCKS);
        squares += n * 32 + threadIdx.x % 32 < BLOCKS ? own_squares[n] + count * distance * distance : 0.0f;
    }
    squares = warp_sum<32>(squares);
}

//@ parts_even_squares
// The sum of squared distances from `mean`, where each block has `count` elements (Chan et al.).
template <int BLOCKS>
__device__ inline float parts_even_squares(const float* squares, const float* sums, float mean, float count) {
    float total = 0.0f;
    for (int part = threadIdx.x % 32; part < BLOCKS; part += 32) {
        const float distance = sums[part] / count - mean;
        total += squares[part] + count * distance * distance;
    }
    return warp_sum<32>(total);
}
