"""C and C++ headers for kernels compiled with NVRTC, which has no host headers.

Each is a few lines over `cuda/std` where the toolkit has it, whose types a second declaration must match, or over plain
constants. They are passed to the compiler from memory. An empty one stands for functions built into NVRTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_INTEGERS = """#pragma once
#if __has_include(<cuda/std/cstdint>)
#include <cuda/std/cstdint>
#else
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef signed long long intptr_t;
typedef unsigned long long uintptr_t;
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MAX 9223372036854775807LL
#define INT64_MIN (-INT64_MAX - 1)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL
#endif
"""
_FLOATS = """#pragma once
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-016
#define DBL_DIG 15
#define DBL_MANT_DIG 53
"""
_LIMITS = """#pragma once
#if __has_include(<cuda/std/climits>)
#include <cuda/std/climits>
#else
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1L)
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define ULLONG_MAX 18446744073709551615ULL
#endif
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VALF INFINITY
#endif
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LN2 0.69314718055994530942
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
"""
_SIZES = """#pragma once
typedef unsigned long size_t;
typedef long ptrdiff_t;
namespace std {
using ::size_t;
using ::ptrdiff_t;
}
"""
_SIZE_OF_STD = "typedef unsigned long size_t;\nnamespace std {\nusing ::size_t;\n}\n"
"""Definition of size_t that most compilers include through any C++ header."""
_ALGORITHM = """#pragma once
namespace std {
template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> constexpr const T& clamp(const T& v, const T& low, const T& high) {
    return v < low ? low : high < v ? high : v;
}
}
"""
_EMPTY = "#pragma once\n"
_FUNCTIONS = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot"),
    *("isfinite", "isinf", "isnan", "lgamma", "log", "log10", "log1p", "log2", "nearbyint", "pow", "rint", "round"),
    *("sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)
_CUB_PARTS = (
    *(
        "adjacent_difference",
        "discontinuity",
        "exchange",
        "histogram",
        "load",
        "merge_sort",
        "radix_rank",
        "radix_sort",
    ),
    *("reduce", "run_length_decode", "scan", "shuffle", "store"),
)
_CUB_WARP_PARTS = ("exchange", "load", "merge_sort", "reduce", "scan", "store")
_CUB_THREAD_PARTS = ("load", "operators", "reduce", "scan", "search", "sort", "store")


def _std(header: str, *names: str) -> str:
    """Return `namespace std` with some names of ``cuda/std/<header>``."""
    uses = "".join(f"using ::cuda::std::{name};\n" for name in names)
    return f"#pragma once\n#include <cuda/std/{header}>\nnamespace std {{\n{uses}}}\n"


def _using(names: Sequence[str]) -> str:
    """Return `namespace std` with names available without it."""
    return "".join(("namespace std {\n", *(f"using ::{name};\n" for name in names), "}\n"))


def _cub() -> str:
    """Return the block, warp and thread parts of CUB. The full header has host code, which NVRTC rejects."""
    parts = (("block", _CUB_PARTS), ("warp", _CUB_WARP_PARTS), ("thread", _CUB_THREAD_PARTS))
    names = [f"cub/{part}/{part}_{name}.cuh" for part, listed in parts for name in listed]
    lines = [f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names]
    return "".join(("#pragma once\n", *lines))


def headers_of(text: str) -> dict[str, str]:
    """Return the headers included by a text, by name."""
    included = set(_INCLUDED.findall(text))
    return {name: header for name, header in STANDARD_HEADERS.items() if name in included}


_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_FIXED_WIDTH = tuple(f"{sign}int{n}_t" for sign in ("", "u") for n in (8, 16, 32, 64))

STANDARD_HEADERS: dict[str, str] = {
    "stdint.h": _INTEGERS,
    "cstdint": _INTEGERS + _SIZE_OF_STD + _using((*_FIXED_WIDTH, "intptr_t", "uintptr_t")),
    "float.h": _FLOATS,
    "cfloat": _FLOATS,
    "limits.h": _LIMITS,
    "climits": _LIMITS,
    "math.h": _MATH,
    "cmath": _MATH + _SIZE_OF_STD + _using(_FUNCTIONS),
    "stddef.h": _SIZES,
    "cstddef": _SIZES,
    "assert.h": _EMPTY,
    "cassert": _EMPTY,
    "stdio.h": _EMPTY,
    "cstdio": _EMPTY,
    "string.h": _EMPTY,
    "cstring": _EMPTY,
    "stdlib.h": _EMPTY,
    "cstdlib": _EMPTY,
    "limits": _std("limits", "numeric_limits"),
    "type_traits": _std(
        "type_traits",
        "is_same",
        "is_same_v",
        "enable_if",
        "enable_if_t",
        "conditional",
        "conditional_t",
        "integral_constant",
        "true_type",
        "false_type",
        "is_integral",
        "is_integral_v",
        "is_floating_point",
        "is_floating_point_v",
        "remove_cv_t",
        "remove_reference_t",
        "decay_t",
        "is_signed",
        "is_signed_v",
        "is_unsigned",
        "is_unsigned_v",
        "is_arithmetic",
        "is_arithmetic_v",
        "is_pointer",
        "is_pointer_v",
        "make_signed_t",
        "make_unsigned_t",
        "remove_const_t",
        "remove_cv",
        "remove_pointer_t",
        "remove_reference",
        "bool_constant",
        "common_type_t",
        "void_t",
    ),
    "utility": _std("utility", "move", "forward", "swap", "pair", "integer_sequence", "index_sequence"),
    "array": _std("array", "array"),
    "algorithm": _ALGORITHM + _SIZE_OF_STD,
    "cub/cub.cuh": _cub(),
    "tuple": _std("tuple", "tuple", "get", "make_tuple"),
}
"""Header text by include name."""
