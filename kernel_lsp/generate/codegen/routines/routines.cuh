// Device functions of routines.

//@ comes_first
// Whether `a` at place i comes before `b` at place j in a sorted row of n elements. NaN is the largest value, equal
// elements keep their order, and places from n on, which pad the row, come last.
template <bool DESCENDING>
__device__ inline bool comes_first({T} a, int i, {T} b, int j, int n) {
    if (i >= n || j >= n) return i < j;
    const bool is_less = a < b || (b != b && a == a);
    const bool is_more = b < a || (a != a && b == b);
    if (is_less || is_more) return DESCENDING ? is_more : is_less;
    return i < j;
}

//@ precedes
// Whether `a` comes before `b` in a sorted row wherever they stand. NaN is the largest value.
template <bool DESCENDING>
__device__ inline bool precedes({T} a, {T} b) {
    return DESCENDING ? b == b && !(a <= b) : a == a && !(a >= b);
}

//@ precedes:integer
// Whether `a` comes before `b` in a sorted row wherever they stand.
template <bool DESCENDING>
__device__ inline bool precedes({T} a, {T} b) {
    return DESCENDING ? a > b : a < b;
}

//@ order_key
// A number that is larger the earlier the value comes in a sorted row. NaN is the largest value, zeros are equal.
template <bool DESCENDING>
__device__ inline unsigned order_key({T} value) {
    const unsigned bits = __float_as_uint(value + 0.0f);  // -0.0 becomes 0.0
    const unsigned key = value != value ? ~0u : bits ^ ((unsigned)((int)bits >> 31) | 0x80000000u);
    return DESCENDING ? key : ~key;
}

//@ order_key:integer
// A number that is larger the earlier the value comes in a sorted row.
template <bool DESCENDING>
__device__ inline unsigned order_key({T} value) {
    const unsigned key = (unsigned)(int)value ^ 0x80000000u;
    return DESCENDING ? key : ~key;
}

//@ take_first
// The largest of a warp's numbers, which differ unless they are 0. It becomes 0.
template <int N>
__device__ inline unsigned long long take_first(unsigned long long (&items)[N]) {
    unsigned long long mine = items[0];
    #pragma unroll
    for (int i = 1; i < N; ++i) mine = max(mine, items[i]);
    const unsigned key = mine >> 32;
    const unsigned high = __reduce_max_sync(~0u, key);
    const unsigned low = __reduce_max_sync(~0u, key == high ? (unsigned)mine : 0u);
    const unsigned long long first = (unsigned long long)high << 32 | low;
    #pragma unroll
    for (int i = 0; i < N; ++i) items[i] = items[i] == first ? 0 : items[i];
    return first;
}

//@ sort_items
// Sorts numbers in registers, the largest first; equal ones keep their order. `at` moves with them.
template <int N>
__device__ inline void sort_items(unsigned (&items)[N], int (&at)[N]) {
    #pragma unroll
    for (int turn = 0; turn < N; ++turn) {
        #pragma unroll
        for (int i = 0; i + 1 < N; ++i) {
            if (i % 2 != turn % 2) continue;
            const unsigned item = items[i];
            const int place = at[i];
            const bool swaps = items[i + 1] > item;
            items[i] = swaps ? items[i + 1] : item;
            items[i + 1] = swaps ? item : items[i + 1];
            at[i] = swaps ? at[i + 1] : place;
            at[i + 1] = swaps ? place : at[i + 1];
        }
    }
}
