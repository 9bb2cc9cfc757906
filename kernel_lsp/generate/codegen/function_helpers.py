"""Texts of functions of one number that CUDA's library lacks. Placeholders are those of `helpers.py`."""

from __future__ import annotations

FUNCTION_HELPERS = {
    "relu": """
__device__ inline {T} relu({T} x) { return x < 0.0{s} ? 0.0{s} : x; }  // keeps NaN
""",
    "sigmoid": """
__device__ inline {T} sigmoid({T} x) { return 1.0{s} / (1.0{s} + exp{f}(-x)); }
""",
    "silu": """
__device__ inline {T} silu({T} x) { return x / (1.0{s} + exp{f}(-x)); }
""",
    "gelu": """
__device__ inline {T} gelu({T} x) { return 0.5{s} * x * (1.0{s} + erf{f}(x * 0.7071067811865476{s})); }
""",
    "gelu_derivative": """
__device__ inline {T} gelu_derivative({T} x) {
    const {T} cdf = 0.5{s} * (1.0{s} + erf{f}(x * 0.7071067811865476{s}));
    return cdf + x * 0.3989422804014327{s} * exp{f}(-0.5{s} * x * x);
}
""",
    "gelu_tanh": """
__device__ inline {T} gelu_tanh({T} x) {
    return 0.5{s} * x * (1.0{s} + tanh{f}(0.7978845608028654{s} * (x + 0.044715{s} * x * x * x)));
}
""",
    "gelu_tanh_derivative": """
__device__ inline {T} gelu_tanh_derivative({T} x) {
    const {T} t = tanh{f}(0.7978845608028654{s} * (x + 0.044715{s} * x * x * x));
    const {T} slope = 0.7978845608028654{s} * (1.0{s} + 0.134145{s} * x * x);
    return 0.5{s} * (1.0{s} + t) + 0.5{s} * x * (1.0{s} - t * t) * slope;
}
""",
    "digamma": """
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
""",
}
