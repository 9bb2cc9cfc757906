// Running combinations, shared by threads of a warp, a block and a grid.
// An operator `Op` has a `State`, its `identity()`, and `combine(earlier, later)`, which need not commute.

//@ Extreme
// A value and where it stands.
template <typename T, typename Position>
struct Extreme {
    T value;
    Position position;
};

//@ lowest
template <typename T>
__device__ inline T lowest();
template <> __device__ inline float lowest<float>() { return -CUDART_INF_F; }
template <> __device__ inline double lowest<double>() { return -CUDART_INF; }
template <> __device__ inline int lowest<int>() { return -2147483647 - 1; }
template <> __device__ inline long long lowest<long long>() { return -9223372036854775807LL - 1; }

//@ highest
template <typename T>
__device__ inline T highest();
template <> __device__ inline float highest<float>() { return CUDART_INF_F; }
template <> __device__ inline double highest<double>() { return CUDART_INF; }
template <> __device__ inline int highest<int>() { return 2147483647; }
template <> __device__ inline long long highest<long long>() { return 9223372036854775807LL; }

//@ shuffle
// A lane's value, and that of the lane `step` below: lanes below `step` get their own.
template <typename T>
__device__ inline T shuffle(T value, int lane) { return __shfl_sync(0xffffffff, value, lane); }
template <typename T>
__device__ inline T shuffle_up(T value, int step) { return __shfl_up_sync(0xffffffff, value, step); }

//@ shuffle_extreme
template <typename T, typename Position>
__device__ inline Extreme<T, Position> shuffle(Extreme<T, Position> entry, int lane) {
    return {__shfl_sync(0xffffffff, entry.value, lane), __shfl_sync(0xffffffff, entry.position, lane)};
}
template <typename T, typename Position>
__device__ inline Extreme<T, Position> shuffle_up(Extreme<T, Position> entry, int step) {
    return {__shfl_up_sync(0xffffffff, entry.value, step), __shfl_up_sync(0xffffffff, entry.position, step)};
}

//@ RunningSum
template <typename T>
struct RunningSum {
    using State = T;
    static __device__ State identity() { return T(0); }
    static __device__ State combine(State earlier, State later) { return earlier + later; }
};

//@ RunningProduct
template <typename T>
struct RunningProduct {
    using State = T;
    static __device__ State identity() { return T(1); }
    static __device__ State combine(State earlier, State later) { return earlier * later; }
};

//@ RunningMax
// NaN stays, as in PyTorch.
template <typename T>
struct RunningMax {
    using State = T;
    static __device__ State identity() { return lowest<T>(); }
    static __device__ State combine(State earlier, State later) {
        return earlier != earlier || earlier > later ? earlier : later;
    }
};

//@ RunningMin
template <typename T>
struct RunningMin {
    using State = T;
    static __device__ State identity() { return highest<T>(); }
    static __device__ State combine(State earlier, State later) {
        return earlier != earlier || earlier < later ? earlier : later;
    }
};

//@ RunningArgMax
// The last of equal maxima, and the last NaN before all numbers, as in PyTorch's cummax.
template <typename T, typename Position>
struct RunningArgMax {
    using State = Extreme<T, Position>;
    static __device__ State identity() { return {lowest<T>(), 0}; }
    static __device__ State combine(State earlier, State later) {
        if (later.value != later.value) return later;
        return earlier.value != earlier.value || earlier.value > later.value ? earlier : later;
    }
};

//@ RunningArgMin
// The last of equal minima, and the last NaN before all numbers, as in PyTorch's cummin.
template <typename T, typename Position>
struct RunningArgMin {
    using State = Extreme<T, Position>;
    static __device__ State identity() { return {highest<T>(), 0}; }
    static __device__ State combine(State earlier, State later) {
        if (later.value != later.value) return later;
        return earlier.value != earlier.value || earlier.value < later.value ? earlier : later;
    }
};

//@ RunningLogSumExp
// log(exp(earlier) + exp(later)) without overflow; equal infinities stay what they are.
template <typename T>
struct RunningLogSumExp {
    using State = T;
    static __device__ State identity() { return lowest<T>(); }
    static __device__ State combine(State earlier, State later) {
        const T high = earlier != earlier || earlier > later ? earlier : later;
        const T low = earlier != earlier || earlier > later ? later : earlier;
        return low == high && isinf(low) ? low : high + log1p(exp(low - high));
    }
};

//@ tile_scan
// Scans a tile of THREADS * PARTS * VECTOR elements. A warp has consecutive elements, in PARTS runs of 32 packs of
// VECTOR; `value` becomes the combination of the warp's elements up to each (before each, with EXCLUSIVE), `start`
// that of the warps before. Returns the combination of the tile.
template <typename Op, int THREADS, int PARTS, int VECTOR, bool EXCLUSIVE>
__device__ inline typename Op::State tile_scan(typename Op::State (&value)[PARTS * VECTOR],
                                               typename Op::State& start) {
    using State = typename Op::State;
    const int lane = threadIdx.x % 32;
    State of_warp = Op::identity();
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        State* run = value + part * VECTOR;
        #pragma unroll
        for (int v = 1; v < VECTOR; ++v) run[v] = Op::combine(run[v - 1], run[v]);
        State up_to = run[VECTOR - 1];  // of the lanes up to this one
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const State other = shuffle_up(up_to, step);
            if (lane >= step) up_to = Op::combine(other, up_to);
        }
        State before = shuffle_up(up_to, 1);
        before = lane == 0 ? of_warp : Op::combine(of_warp, before);
        #pragma unroll
        for (int v = VECTOR - 1; v >= 0; --v) {
            if (EXCLUSIVE) run[v] = v == 0 ? before : Op::combine(before, run[v - 1]);
            else run[v] = Op::combine(before, run[v]);
        }
        of_warp = Op::combine(of_warp, shuffle(up_to, 31));
    }
    start = Op::identity();
    if (THREADS == 32) return of_warp;
    __shared__ State of_warps[THREADS / 32];
    if (lane == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    State total = Op::identity();
    #pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) {
        if (warp == threadIdx.x / 32) start = total;
        total = Op::combine(total, of_warps[warp]);
    }
    __syncthreads();
    return total;
}

//@ column_scan
// Scans WIDTH columns side by side: threads with one threadIdx.x share a column, each has ITEMS consecutive elements.
// `value` becomes the combination of the thread's elements up to each (before each, with EXCLUSIVE), `start` that of
// the threads before. Returns the combination of the column's LANES * ITEMS elements.
template <typename Op, int WIDTH, int LANES, int ITEMS, bool EXCLUSIVE>
__device__ inline typename Op::State column_scan(typename Op::State (&value)[ITEMS], typename Op::State& start) {
    using State = typename Op::State;
    #pragma unroll
    for (int item = 1; item < ITEMS; ++item) value[item] = Op::combine(value[item - 1], value[item]);
    const State own = value[ITEMS - 1];
    if (EXCLUSIVE) {
        #pragma unroll
        for (int item = ITEMS - 1; item > 0; --item) value[item] = value[item - 1];
        value[0] = Op::identity();
    }
    start = Op::identity();
    if (LANES == 1) return own;
    __shared__ State of_lanes[LANES][WIDTH];
    of_lanes[threadIdx.y][threadIdx.x] = own;
    __syncthreads();
    State total = Op::identity();
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        if (lane == threadIdx.y) start = total;
        total = Op::combine(total, of_lanes[lane][threadIdx.x]);
    }
    __syncthreads();
    return total;
}

//@ take_place
// The number of this block in the order in which blocks begin: those with lower numbers are running or done.
__device__ inline int take_place(long long* counter) {
    __shared__ int place;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        place = (int)atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ULL);
    }
    __syncthreads();
    return place;
}

//@ publish
// A value for other blocks: 32 bits of it in each 64-bit word, whose other half says that they are there. So no fence
// is needed between a value and its mark.
template <typename T>
__device__ inline void publish(long long* words, const T& value) {
    unsigned pieces[sizeof(T) / 4];
    memcpy(pieces, &value, sizeof(T));
    #pragma unroll
    for (int piece = 0; piece < sizeof(T) / 4; ++piece) {
        *(volatile long long*)(words + piece) = 1LL << 32 | pieces[piece];
    }
}
// Waits for a value that another block publishes.
template <typename T>
__device__ inline T await(long long* words) {
    unsigned pieces[sizeof(T) / 4];
    #pragma unroll
    for (int piece = 0; piece < sizeof(T) / 4; ++piece) {
        long long word;
        do {
            word = *(volatile long long*)(words + piece);
        } while (word >> 32 == 0);
        pieces[piece] = (unsigned)word;
    }
    T value;
    memcpy(&value, pieces, sizeof(T));
    return value;
}

//@ look_back
// The combination of all tiles of the row before this one. Every tile publishes its own; the last of each 32 also that
// of the row up to its end. A tile waits for those before it in its 32, and for what is before these. The order of the
// combinations depends on no timing, so every run gives the same bits.
template <typename Op>
__device__ inline typename Op::State look_back(long long* words, int row, int n_tiles, int tile,
                                               typename Op::State total) {
    using State = typename Op::State;
    constexpr int WORDS = sizeof(State) / 4;
    long long* row_words = words + (long long)row * (n_tiles + (n_tiles + 31) / 32) * WORDS;
    __shared__ State before;
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x, last = tile % 32, group = tile / 32;
        long long* ends = row_words + (long long)n_tiles * WORDS;
        if (lane == last) publish(row_words + (long long)tile * WORDS, total);
        State up_to = total;
        if (lane < last) up_to = await<State>(row_words + (long long)(tile - last + lane) * WORDS);
        __syncwarp();
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const State other = shuffle_up(up_to, step);
            if (lane >= step) up_to = Op::combine(other, up_to);
        }
        const State of_others = shuffle_up(up_to, 1);
        if (lane == last) {
            const State start = group == 0 ? Op::identity() : await<State>(ends + (long long)(group - 1) * WORDS);
            if (last == 31) publish(ends + (long long)group * WORDS, Op::combine(start, up_to));
            before = last == 0 ? start : Op::combine(start, of_others);
        }
    }
    __syncthreads();
    return before;
}

//@ column_look_back
// For each of WIDTH columns side by side the combination of all its tiles before this one. Every tile publishes its
// own; the last of each LANES also that of the column up to its end. A tile waits for those before it in its LANES, and
// for what is before these. The order of the combinations depends on no timing, so every run gives the same bits.
template <typename Op, int WIDTH, int LANES>
__device__ inline typename Op::State column_look_back(long long* words, int n_columns, int column, int n_tiles,
                                                      int tile, typename Op::State total) {
    using State = typename Op::State;
    constexpr int WORDS = sizeof(State) / 4;
    __shared__ State of_tiles[LANES][WIDTH];
    const int last = tile % LANES, group = tile / LANES;
    const long long tile_words = (long long)n_columns * WORDS;
    long long* own = words + (long long)column * WORDS;
    long long* ends = own + n_tiles * tile_words;
    if (column < n_columns) {
        if (threadIdx.y == last) publish(own + tile * tile_words, total);
        if (threadIdx.y < last) {
            of_tiles[threadIdx.y][threadIdx.x] = await<State>(own + (tile - last + threadIdx.y) * tile_words);
        }
        if (threadIdx.y == last) {
            of_tiles[last][threadIdx.x] = group == 0 ? Op::identity() : await<State>(ends + (group - 1) * tile_words);
        }
    }
    __syncthreads();
    State before = Op::identity();
    if (column < n_columns) {
        before = of_tiles[last][threadIdx.x];
        for (int lane = 0; lane < last; ++lane) before = Op::combine(before, of_tiles[lane][threadIdx.x]);
        if (last == LANES - 1 && threadIdx.y == last) publish(ends + group * tile_words, Op::combine(before, total));
    }
    return before;
}
