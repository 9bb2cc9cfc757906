"""Small `__device__` functions that kernels call. A file holds those it uses, each once.

Texts are written for one type: ``{T}`` is the type, ``{f}`` the suffix of math functions, ``{s}`` that of literals.
Maxima, minima and their likes propagate NaN as PyTorch does, which CUDA's fmaxf and fminf do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel_lsp.generate.codegen.tensor_core_helpers import TENSOR_CORE_HELPERS
from kernel_lsp.generate.codegen.warpgroup_helpers import WARPGROUP_HELPERS

SUFFIXES = {"float": ("f", "f"), "double": ("", "")}


@dataclass(frozen=True)
class Helper:
    """A device function. `needs` are helpers it calls, of the same type."""

    text: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class HelperUse:
    """A helper for one type."""

    name: str
    type: str


def render_helpers(uses: Iterable[HelperUse]) -> str:
    """The functions used and what they need, in an order that compiles."""
    wanted: set[HelperUse] = set()
    pending = list(uses)
    while pending:
        use = pending.pop()
        if use not in wanted:
            wanted.add(use)
            pending.extend(HelperUse(name, _needed_type(name, use.type)) for name in HELPERS[use.name].needs)
    order = {name: position for position, name in enumerate(HELPERS)}
    ordered = sorted(wanted, key=lambda use: (order[use.name], use.type))
    return "\n".join(_render(use) for use in ordered)


def _needed_type(name: str, type_: str) -> str:
    return "" if name in TYPELESS else type_


def _render(use: HelperUse) -> str:
    f, s = SUFFIXES.get(use.type, ("", ""))
    text = HELPERS[use.name].text.strip("\n")
    if use.type not in SUFFIXES:
        text = _INTEGER_EXTREMES.get(use.name, text)
    return text.replace("{T}", use.type).replace("{f}", f).replace("{s}", s) + "\n"


HELPERS: dict[str, Helper] = {
    "floor_div": Helper("""
// Rounds towards minus infinity, as Python's // does.
__device__ inline int floor_div(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
"""),
    "floor_mod": Helper(
        """
__device__ inline int floor_mod(int a, int b) { return a - floor_div(a, b) * b; }
""",
        ("floor_div",),
    ),
    "Pack": Helper("""
// N neighbours in memory, moved by one load or store.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T item[N];
};
"""),
    "packs": Helper(
        """
template <int N, typename T>
__device__ inline const Pack<T, N>* packs(const T* pointer) {
    return reinterpret_cast<const Pack<T, N>*>(pointer);
}
template <int N, typename T>
__device__ inline Pack<T, N>* packs(T* pointer) {
    return reinterpret_cast<Pack<T, N>*>(pointer);
}
""",
        ("Pack",),
    ),
    "maximum": Helper("""
// NaN when either is NaN, as in PyTorch.
__device__ inline {T} maximum({T} a, {T} b) { return a > b || isnan(a) ? a : b; }
"""),
    "minimum": Helper("""
// NaN when either is NaN, as in PyTorch.
__device__ inline {T} minimum({T} a, {T} b) { return a < b || isnan(a) ? a : b; }
"""),
    "relu": Helper("""
__device__ inline {T} relu({T} x) { return x < 0.0{s} ? 0.0{s} : x; }  // keeps NaN
"""),
    "sigmoid": Helper("""
__device__ inline {T} sigmoid({T} x) { return 1.0{s} / (1.0{s} + exp{f}(-x)); }
"""),
    "silu": Helper("""
__device__ inline {T} silu({T} x) { return x / (1.0{s} + exp{f}(-x)); }
"""),
    "gelu": Helper("""
__device__ inline {T} gelu({T} x) { return 0.5{s} * x * (1.0{s} + erf{f}(x * 0.7071067811865476{s})); }
"""),
    "gelu_derivative": Helper("""
__device__ inline {T} gelu_derivative({T} x) {
    const {T} cdf = 0.5{s} * (1.0{s} + erf{f}(x * 0.7071067811865476{s}));
    return cdf + x * 0.3989422804014327{s} * exp{f}(-0.5{s} * x * x);
}
"""),
    "gelu_tanh": Helper("""
__device__ inline {T} gelu_tanh({T} x) {
    return 0.5{s} * x * (1.0{s} + tanh{f}(0.7978845608028654{s} * (x + 0.044715{s} * x * x * x)));
}
"""),
    "gelu_tanh_derivative": Helper("""
__device__ inline {T} gelu_tanh_derivative({T} x) {
    const {T} t = tanh{f}(0.7978845608028654{s} * (x + 0.044715{s} * x * x * x));
    const {T} slope = 0.7978845608028654{s} * (1.0{s} + 0.134145{s} * x * x);
    return 0.5{s} * (1.0{s} + t) + 0.5{s} * x * (1.0{s} - t * t) * slope;
}
"""),
    "sign": Helper("""
__device__ inline {T} sign({T} x) { return static_cast<{T}>((x > 0) - (x < 0)); }
"""),
    "python_remainder": Helper("""
// The sign of the divisor, as in Python.
__device__ inline {T} python_remainder({T} a, {T} b) {
    const {T} r = fmod{f}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
"""),
    "integer_remainder": Helper("""
// The sign of the divisor, as in Python.
__device__ inline {T} integer_remainder({T} a, {T} b) {
    const {T} r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
"""),
    "floor_divide": Helper("""
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
"""),
    "floor_divide_integer": Helper("""
__device__ inline {T} floor_divide_integer({T} a, {T} b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
"""),
    "integer_power": Helper("""
__device__ inline {T} integer_power({T} base, {T} exponent) {
    {T} result = exponent < 0 ? (base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0) : 1;
    for (; exponent > 0; exponent /= 2, base *= base) {
        if (exponent % 2) result *= base;
    }
    return result;
}
"""),
    "comes_before": Helper("""
// The order of argmax: NaN before everything, then the larger value, then the smaller index; -1 stands for none.
__device__ inline bool comes_before({T} value, int index, {T} best, int best_index) {
    if (index < 0 || best_index < 0) return index >= 0;
    if (value != value || best != best) return value != value && (best == best || index < best_index);
    return value > best || (value == best && index < best_index);
}
"""),
    "wins_window": Helper("""
// The order of pooling, whose values come by rising index: the last NaN, else the first of the largest; -1 is none.
__device__ inline bool wins_window({T} value, int index, {T} best, int best_index) {
    if (index < 0 || best_index < 0) return index >= 0;
    return value > best || value != value;
}
"""),
    "warp_sum": Helper("""
// Every one of WIDTH neighbouring lanes gets the sum of all.
template <int WIDTH>
__device__ inline {T} warp_sum({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step, WIDTH);
    return value;
}
"""),
    "warp_prod": Helper("""
template <int WIDTH>
__device__ inline {T} warp_prod({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) value *= __shfl_xor_sync(0xffffffff, value, step, WIDTH);
    return value;
}
"""),
    "warp_max": Helper(
        """
template <int WIDTH>
__device__ inline {T} warp_max({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        value = maximum(value, __shfl_xor_sync(0xffffffff, value, step, WIDTH));
    }
    return value;
}
""",
        ("maximum",),
    ),
    "warp_min": Helper(
        """
template <int WIDTH>
__device__ inline {T} warp_min({T} value) {
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        value = minimum(value, __shfl_xor_sync(0xffffffff, value, step, WIDTH));
    }
    return value;
}
""",
        ("minimum",),
    ),
    "warp_argmax": Helper(
        """
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
""",
        ("comes_before",),
    ),
    **{
        f"block_{kind}": Helper(
            f"""
// Every thread of a block of THREADS gets the {word} over all.
template <int THREADS>
__device__ inline {{T}} block_{kind}({{T}} value) {{
    __shared__ {{T}} of_warp[32];
    value = warp_{kind}<32>(value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[threadIdx.x % (THREADS / 32)];
    __syncthreads();
    return warp_{kind}<THREADS / 32>(value);
}}
""",
            (f"warp_{kind}",),
        )
        for kind, word in (("sum", "sum"), ("prod", "product"), ("max", "maximum"), ("min", "minimum"))
    },
    "block_argmax": Helper(
        """
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
""",
        ("warp_argmax",),
    ),
    **{
        f"column_{kind}": Helper(
            f"""
// Combines over threadIdx.y; every thread gets the result of its threadIdx.x.
template <int LANES, int WIDTH>
__device__ inline {{T}} column_{kind}({{T}} value) {{
    __shared__ {{T}} of_lane[LANES][WIDTH];
    of_lane[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    {{T}} result = of_lane[0][threadIdx.x];
    for (int lane = 1; lane < LANES; ++lane) {combine}
    __syncthreads();
    return result;
}}
""",
            needs,
        )
        for kind, combine, needs in (
            ("sum", "result += of_lane[lane][threadIdx.x];", ()),
            ("prod", "result *= of_lane[lane][threadIdx.x];", ()),
            ("max", "result = maximum(result, of_lane[lane][threadIdx.x]);", ("maximum",)),
            ("min", "result = minimum(result, of_lane[lane][threadIdx.x]);", ("minimum",)),
        )
    },
    "column_argmax": Helper(
        """
template <int LANES, int WIDTH>
__device__ inline void column_argmax({T}& best, int& best_index) {
    __shared__ {T} of_lane[LANES][WIDTH];
    __shared__ int index_of_lane[LANES][WIDTH];
    of_lane[threadIdx.y][threadIdx.x] = best;
    index_of_lane[threadIdx.y][threadIdx.x] = best_index;
    __syncthreads();
    for (int lane = 0; lane < LANES; ++lane) {
        if (comes_before(of_lane[lane][threadIdx.x], index_of_lane[lane][threadIdx.x], best, best_index)) {
            best = of_lane[lane][threadIdx.x];
            best_index = index_of_lane[lane][threadIdx.x];
        }
    }
    __syncthreads();
}
""",
        ("comes_before",),
    ),
    "block_scan_sum": Helper("""
// The sum of the values of this thread and all before it, and in `total` that of the block.
template <int THREADS>
__device__ inline {T} block_scan_sum({T} value, {T}& total) {
    __shared__ {T} of_thread[THREADS];
    of_thread[threadIdx.x] = value;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
        const {T} before = threadIdx.x >= step ? of_thread[threadIdx.x - step] : static_cast<{T}>(0);
        __syncthreads();
        of_thread[threadIdx.x] += before;
        __syncthreads();
    }
    value = of_thread[threadIdx.x];
    total = of_thread[THREADS - 1];
    __syncthreads();
    return value;
}
"""),
    "block_scan_prod": Helper("""
// The product of the values of this thread and all before it, and in `total` that of the block.
template <int THREADS>
__device__ inline {T} block_scan_prod({T} value, {T}& total) {
    __shared__ {T} of_thread[THREADS];
    of_thread[threadIdx.x] = value;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
        const {T} before = threadIdx.x >= step ? of_thread[threadIdx.x - step] : static_cast<{T}>(1);
        __syncthreads();
        of_thread[threadIdx.x] *= before;
        __syncthreads();
    }
    value = of_thread[threadIdx.x];
    total = of_thread[THREADS - 1];
    __syncthreads();
    return value;
}
"""),
    **{name: Helper(text) for name, text in {**TENSOR_CORE_HELPERS, **WARPGROUP_HELPERS}.items()},
}
TYPELESS = frozenset(("Pack", "packs", "floor_div", "floor_mod", *TENSOR_CORE_HELPERS, *WARPGROUP_HELPERS))
_INTEGER_EXTREMES = {
    "maximum": "__device__ inline {T} maximum({T} a, {T} b) { return a > b ? a : b; }",
    "minimum": "__device__ inline {T} minimum({T} a, {T} b) { return a < b ? a : b; }",
}
