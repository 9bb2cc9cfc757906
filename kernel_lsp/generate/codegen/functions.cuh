// Device functions that any kernel may call. `{T}` is the type of a section, `{f}` the suffix of its math functions,
// `{s}` that of its literals; other placeholders are columns of INSTANCES in helpers.py. Maxima, minima and similar
// functions propagate NaN as PyTorch does, unlike CUDA's fmaxf and fminf.

//@ floor_div
// Rounds towards minus infinity, as Python's // does.
__device__ inline int floor_div(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

//@ floor_mod
__device__ inline int floor_mod(int a, int b) { return a - floor_div(a, b) * b; }

//@ near_quotient
// position / size and position % size, quick where the position is mostly below the size.
template <typename T>
__device__ inline T near_quotient(T position, T size) { return position < size ? 0 : position / size; }
template <typename T>
__device__ inline T near_remainder(T position, T size) { return position < size ? position : position % size; }

//@ size_quotient
// position / size and position % size by inverse = (2^30 - 1) / size + 1: at most one too many. All are at most 2^30.
__device__ inline int size_quotient(int position, int size, int inverse) {
    const int most = __umulhi(static_cast<unsigned int>(position) << 2, inverse);
    return most * size > position ? most - 1 : most;
}
__device__ inline int size_rest(int position, int size, int inverse) {
    return position - size_quotient(position, size, inverse) * size;
}

//@ Pack
// N neighbours in memory, moved by one load or store.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T item[N];
};

//@ packs
template <int N, typename T>
__device__ inline const Pack<T, N>* packs(const T* pointer) {
    return reinterpret_cast<const Pack<T, N>*>(pointer);
}
template <int N, typename T>
__device__ inline Pack<T, N>* packs(T* pointer) {
    return reinterpret_cast<Pack<T, N>*>(pointer);
}

//@ deal_sums
// Adds up each of the values over a warp's lanes, and leaves a lane its share of the sums: those from lane * share on.
template <int HALF, int STEP, int COUNT>
__device__ inline void deal_sums(float (&sums)[COUNT]) {
    const bool is_upper = threadIdx.x & STEP;
    #pragma unroll
    for (int c = 0; c < HALF; ++c) {
        const float given = is_upper ? sums[c] : sums[c + HALF];
        const float kept = is_upper ? sums[c + HALF] : sums[c];
        sums[c] = kept + __shfl_xor_sync(0xffffffff, given, STEP);
    }
    if constexpr (STEP > 1) deal_sums<HALF / 2, STEP / 2>(sums);
}

//@ read_peer
// What another block of the cluster has at the same place of its shared memory.
template <typename T>
__device__ inline T read_peer(const T* own, int rank) {
    const T* there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return *there;
}

//@ wait_async
// Waits for what this thread copies.
__device__ inline void wait_async() { asm volatile("cp.async.wait_all;" ::: "memory"); }

//@ prefetch
// Asks for memory that is read later; waits for nothing.
template <typename T>
__device__ inline void prefetch(const T* pointer) { asm volatile("prefetch.global.L2 [%0];" :: "l"(pointer)); }

//@ prefetch_all
// Asks for a small tensor, each thread for a line of 128 bytes.
template <typename T>
__device__ inline void prefetch_all(const T* pointer, int n_elements) {
    constexpr int line = 128 / sizeof(T);
    for (int i = threadIdx.x * line; i < n_elements; i += blockDim.x * line) prefetch(pointer + i);
}

//@ maximum
// NaN when either is NaN, as in PyTorch.
__device__ inline {T} maximum({T} a, {T} b) { return a > b || isnan(a) ? a : b; }

//@ minimum
// NaN when either is NaN, as in PyTorch.
__device__ inline {T} minimum({T} a, {T} b) { return a < b || isnan(a) ? a : b; }

//@ nan_{extreme}
// NaN when either is NaN, by one instruction; {other} also orders zeros by their position, as PyTorch does.
__device__ inline float nan_{extreme}(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("{extreme}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return {other}(a, b);
#endif
}

//@ relu
__device__ inline {T} relu({T} x) { return x < 0.0{s} ? 0.0{s} : x; }  // keeps NaN

//@ sigmoid
__device__ inline {T} sigmoid({T} x) { return 1.0{s} / (1.0{s} + exp{f}(-x)); }

//@ sigmoid:float
// Within 3 ulp: the inverse of a number of 1 to 2 is rounded by one more step, which needs no case for its range.
__device__ inline float sigmoid(float x) {
    const float e = expf(-fabsf(x)), sum = 1.0f + e;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    inverse = fmaf(inverse, fmaf(-sum, inverse, 1.0f), inverse);
    return x < 0.0f ? e * inverse : inverse;
}

//@ gelu
__device__ inline {T} gelu({T} x) { return 0.5{s} * x * (1.0{s} + erf{f}(x * 0.7071067811865476{s})); }

//@ gelu_tanh
__device__ inline {T} gelu_tanh({T} x) {
    return 0.5{s} * x * (1.0{s} + tanh{f}(0.7978845608028654{s} * (x + 0.044715{s} * x * x * x)));
}

//@ digamma
// By reflection for negative numbers, then by recurrence up to 10, where the asymptotic series is exact.
__device__ inline {T} digamma({T} x) {
    if (x == 0) return 1 / -x;
    {T} result = 0;
    if (x < 0) {
        const {T} fraction = x - trunc{f}(x);  // 0 at the poles, NaN at minus infinity
        if (!(fraction < 0)) return fraction / fraction;
        result = -3.141592653589793{s} * cospi{f}(fraction) / sinpi{f}(fraction);
        x = 1 - x;
    }
    for (int step = 0; step < 10; ++step) {
        if (x < 10) {
            result -= 1 / x;
            x += 1;
        }
    }
    const {T} z = 1 / (x * x);
    {T} series = z * 8.33333333333333333333e-2{s} - 2.10927960927960927961e-2{s};
    series = series * z + 7.57575757575757575758e-3{s};
    series = series * z - 4.16666666666666666667e-3{s};
    series = series * z + 3.96825396825396825397e-3{s};
    series = series * z - 8.33333333333333333333e-3{s};
    series = series * z + 8.33333333333333333333e-2{s};
    return result + (log{f}(x) - 0.5{s} / x - z * series);
}

//@ sign
__device__ inline {T} sign({T} x) { return static_cast<{T}>(x > 0) - static_cast<{T}>(x < 0); }

//@ python_remainder
// The sign of the divisor, as in Python.
__device__ inline {T} python_remainder({T} a, {T} b) {
    const {T} r = fmod{f}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

//@ integer_remainder
// The sign of the divisor, as in Python.
__device__ inline {T} integer_remainder({T} a, {T} b) {
    const {T} r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

//@ floor_divide
// Rounds the exact quotient down, which floor(a / b) does not always.
__device__ inline {T} floor_divide({T} a, {T} b) {
    if (b == 0) return a / b;
    const {T} r = fmod{f}(a, b);
    {T} quotient = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) quotient -= 1.0{s};
    if (quotient == 0) return copysign{f}(0.0{s}, a / b);
    const {T} rounded = floor{f}(quotient);
    return quotient - rounded > 0.5{s} ? rounded + 1.0{s} : rounded;
}

//@ floor_divide_integer
__device__ inline {T} floor_divide_integer({T} a, {T} b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

//@ integer_power
__device__ inline {T} integer_power({T} base, {T} exponent) {
    {T} result = exponent < 0 ? (base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0) : 1;
    for (; exponent > 0; exponent /= 2, base *= base) {
        if (exponent % 2) result *= base;
    }
    return result;
}

//@ {adding}
// Adds N values to a maximum and a sum of exponentials relative to it. A maximum of -inf has a sum of 0.{purpose}
template <int N>
__device__ inline void {adding}(const {T} (&values)[N], {T}& largest, {T}& sum) {
    const {T} before = largest;
    for (int v = 0; v < N; ++v) largest = nan_max(largest, values[v]);
    const {T} pivot = largest == -CUDART_INF_F ? 0.0{s} : largest;
    sum *= {exp}(before - pivot);
    for (int v = 0; v < N; ++v) sum += {exp}(values[v] - pivot);
}

//@ {raising}
// Raises a maximum to that of N more values, and sets its finite pivot. Returns what then multiplies exponentials
// relative to the pivot; `shift` is what distances from it change by.
template <int N>
__device__ inline float {raising}(const float (&values)[N], float& peak, float& pivot, float& shift) {
    const float before = peak, old_pivot = pivot;
    for (int v = 0; v < N; ++v) peak = nan_max(peak, values[v]);
    pivot = peak == -CUDART_INF_F ? 0.0f : peak;
    shift = old_pivot - pivot;
    return {exp}(before - pivot);
}

//@ add_moments
// Adds N values to a mean and a sum of squared distances from it (Chan, Golub, LeVeque).
template <int N>
__device__ inline void add_moments(const float (&values)[N], float& count, float& mean, float& squares) {
    float pack_mean = 0.0f;
    for (int v = 0; v < N; ++v) pack_mean += values[v];
    pack_mean *= 1.0f / N;
    for (int v = 0; v < N; ++v) squares += (values[v] - pack_mean) * (values[v] - pack_mean);
    const float distance = pack_mean - mean, share = N / (count + N);
    mean += distance * share;
    squares += distance * count * share * distance;
    count += N;
}

//@ hold_load
// Has the compiler load a value before this, not where it is used first.
__device__ inline void hold_load(float& value) { asm volatile("" : "+f"(value)); }
template <typename T>
__device__ inline void hold_load(T& value) {  // of 16 bits
    asm volatile("" : "+h"(reinterpret_cast<unsigned short&>(value)));
}

//@ share_of
// How many of n packs block `rank` does when BLOCKS blocks of THREADS threads take turns.
template <int BLOCKS, int THREADS>
__device__ inline int share_of(int n, int rank) {
    const int rest = n % (BLOCKS * THREADS) - rank * THREADS;
    return n / (BLOCKS * THREADS) * THREADS + (rest < 0 ? 0 : rest < THREADS ? rest : THREADS);
}

//@ load_once
// Loads and stores with early eviction: what is used once leaves the cache to what is used again.
template <typename T, int N>
__device__ inline Pack<T, N> load_once(const Pack<T, N>* pointer) {
    static_assert(sizeof(Pack<T, N>) % 4 == 0, "a pack is one word or more");
    constexpr int WORDS = sizeof(Pack<T, N>) / 4;
    union {
        Pack<T, N> pack;
        unsigned one;
        uint2 two;
        uint4 four;
    } bits;
    if constexpr (WORDS == 4) bits.four = __ldcs(reinterpret_cast<const uint4*>(pointer));
    if constexpr (WORDS == 2) bits.two = __ldcs(reinterpret_cast<const uint2*>(pointer));
    if constexpr (WORDS == 1) bits.one = __ldcs(reinterpret_cast<const unsigned*>(pointer));
    return bits.pack;
}
template <typename T, int N>
__device__ inline void store_once(Pack<T, N>* pointer, const Pack<T, N>& pack) {
    constexpr int WORDS = sizeof(Pack<T, N>) / 4;
    if constexpr (WORDS == 4) __stcs(reinterpret_cast<uint4*>(pointer), reinterpret_cast<const uint4&>(pack));
    if constexpr (WORDS == 2) __stcs(reinterpret_cast<uint2*>(pointer), reinterpret_cast<const uint2&>(pack));
    if constexpr (WORDS == 1) __stcs(reinterpret_cast<unsigned*>(pointer), reinterpret_cast<const unsigned&>(pack));
}

//@ cluster_sync
// Waits for all threads of the cluster, and for what they have written to shared memory.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

//@ cluster_arrive
// Lets the blocks of the cluster go on that wait for this thread.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive;" ::: "memory"); }

//@ cluster_wait
// Waits for all threads of the cluster to arrive.
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

//@ in_block
// Where block `rank` of the cluster has the variable that `own` points to in this block's shared memory.
template <typename T>
__device__ inline T* in_block(T* own, int rank) {
    T* remote;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(own), "r"(rank));
    return remote;
}

//@ grid_sync
// Waits for all blocks, which run at once, for the launch is cooperative. The counter is the driver's, which needs no
// launch to set it to 0: each round flips its highest bit.
__device__ inline void grid_sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned high, low;
        asm("mov.u32 %0, %%envreg1;" : "=r"(high));
        asm("mov.u32 %0, %%envreg2;" : "=r"(low));
        unsigned* counter = reinterpret_cast<unsigned*>((unsigned long long)high << 32 | low) + 1;
        const unsigned arrived = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        unsigned before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before) : "l"(counter), "r"(arrived) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        } while (((before ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

//@ copy_pack
// Starts to copy a pack of 4, 8 or 16 bytes to shared memory.
template <typename T, int N>
__device__ inline void copy_pack(Pack<T, N>* target, const Pack<T, N>* source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(target)),
                 "l"(source), "n"(sizeof(Pack<T, N>))
                 : "memory");
}

//@ copy_past_l1
// Starts to copy a pack of 16 bytes to shared memory past the L1 cache. No cache hint: an H100 refuses such copies.
template <typename T, int N>
__device__ inline void copy_past_l1(Pack<T, N>* target, const Pack<T, N>* source) {
    static_assert(sizeof(Pack<T, N>) == 16, "copies past the L1 cache move 16 bytes");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(target)),
                 "l"(source)
                 : "memory");
}

//@ load_kept
// Loads what leaves the L2 cache last. Volatile: it must not move before its bounds check.
template <typename T, int N>
__device__ inline Pack<T, N> load_kept(const Pack<T, N>* pointer) {
    static_assert(sizeof(Pack<T, N>) == 16 || sizeof(Pack<T, N>) == 8, "one load moves 8 or 16 bytes");
#if __CUDA_ARCH__ < 800
    return *pointer;
#else
    unsigned long long policy;
    union {
        Pack<T, N> pack;
        unsigned words[4];
    } bits;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    if constexpr (sizeof(Pack<T, N>) == 16) {
        asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(bits.words[0]), "=r"(bits.words[1]), "=r"(bits.words[2]), "=r"(bits.words[3])
                     : "l"(pointer), "l"(policy));
    } else {
        asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                     : "=r"(bits.words[0]), "=r"(bits.words[1])
                     : "l"(pointer), "l"(policy));
    }
    return bits.pack;
#endif
}

//@ byte_quotient
// x / y of an integer x of 8 bits, rounded as the division is: tried for all x. `inverse` is that of y.
__device__ inline float byte_quotient(float x, float y, float inverse) {
    const float quotient = x * inverse;
    return fmaf(fmaf(-quotient, y, x), inverse, quotient);
}

//@ quick_quotient
// A quotient of at most 2 ulp, over the whole range.
__device__ inline float quick_quotient(float a, float b) {
    float result;
    asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

//@ quick_sigmoid
__device__ inline float quick_sigmoid(float x) { return quick_quotient(1.0f, 1.0f + __expf(-x)); }  // for 16 bits

//@ quick_root
// A square root of at most 1 ulp.
__device__ inline float quick_root(float value) {
    float result;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

//@ any_left
// Whether one of N chains has not ended.
template <int N>
__device__ inline bool any_left(const int (&at)[N]) {
    int newest = -1;
    #pragma unroll
    for (int c = 0; c < N; ++c) newest = max(newest, at[c]);
    return newest >= 0;
}

//@ comes_before
// The order of argmax: NaN before everything, then the larger value, then the smaller index; -1 stands for none.
__device__ inline bool comes_before({T} value, int index, {T} best, int best_index) {
    if (index < 0 || best_index < 0) return index >= 0;
    if (value != value || best != best) return value != value && (best == best || index < best_index);
    return value > best || (value == best && index < best_index);
}

//@ improves
// The order of argmax for values that come by rising index: the first NaN, else the first of the largest; -1 is none.
__device__ inline bool improves({T} value, {T} best, int best_index) {
    return best_index < 0 || (!(value <= best) && best == best);
}

//@ wins_window
// The order of pooling, whose values come by rising index: the last NaN, else the first of the largest.
__device__ inline bool wins_window({T} value, {T} best) { return value > best || value != value; }

//@ maximum:integer
__device__ inline {T} maximum({T} a, {T} b) { return a > b ? a : b; }

//@ minimum:integer
__device__ inline {T} minimum({T} a, {T} b) { return a < b ? a : b; }
