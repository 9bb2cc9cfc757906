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
