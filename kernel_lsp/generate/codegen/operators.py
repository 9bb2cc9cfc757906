"""Scalar operators as C++ expressions, with the precedence that decides where parentheses go."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.helpers import HelperUse


@dataclass(frozen=True)
class Text:
    """An expression and the precedence of its outermost operator."""

    text: str
    precedence: int

    def within(self, precedence: int) -> str:
        """Return the text as an operand of an operator of that precedence."""
        return f"({self.text})" if self.precedence < precedence else self.text


ATOM, UNARY, MULTIPLY, ADD, SHIFT, RELATION, EQUALITY = 20, 15, 13, 12, 11, 10, 9
BIT_AND, BIT_XOR, BIT_OR, AND, OR, TERNARY = 8, 7, 6, 5, 4, 3

COMPUTE_TYPE = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "float",
    DType.BF16: "float",
    DType.I64: "long long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "signed char",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
"""C++ type of a value's computation, by element type."""
NARROW = (DType.I16, DType.I8, DType.U8)
"""Element types whose arithmetic C++ does in int. Results are wrapped after every operator."""


def literal(value: float | int | bool, dtype: DType) -> Text:
    """Return a constant as C++."""
    if dtype == DType.BOOL:
        return Text("true" if value else "false", ATOM)
    if dtype.is_floating:
        return _float_literal(float(value), COMPUTE_TYPE[dtype] == "float")
    number = int(value)
    if number == -(1 << 63):
        return Text("(-9223372036854775807LL - 1)", ATOM)
    suffix = "LL" if abs(number) >= 1 << 31 else ""
    return Text(f"{number}{suffix}", ATOM if number >= 0 else UNARY)


def format_operation(
    name: str, dtype: DType, operands: Sequence[Text], types: Sequence[DType], *, uses_intrinsics: bool = False
) -> Text:
    """Return the operator applied to its operands: an expression, or a call of a helper or of CUDA's function.
    `uses_intrinsics` allows those of `INTRINSICS`. Raises KeyError for an unknown operator on integers."""
    if uses_intrinsics and name in INTRINSICS and COMPUTE_TYPE[dtype] == "float":
        return Text(f"{INTRINSICS[name]}({operands[0].text})", ATOM)
    text = _format(name, dtype, operands, types)
    if dtype in NARROW and name in WRAPPED:
        return Text(f"({COMPUTE_TYPE[dtype]})({text.text})", UNARY)
    return text


def helper_uses(name: str, dtype: DType) -> tuple[HelperUse, ...]:
    """Return the device functions that the operator calls."""
    type_ = COMPUTE_TYPE[dtype]
    helper = (FLOAT_HELPERS if dtype.is_floating else INTEGER_HELPERS).get(name)
    return (HelperUse(helper, type_),) if helper else ()


def convert(operand: Text, source: DType, target: DType) -> Text:
    """Return a cast between compute types."""
    if target == DType.BOOL:
        return Text(f"{operand.within(EQUALITY + 1)} != 0", EQUALITY)
    source_type, target_type = COMPUTE_TYPE[source], COMPUTE_TYPE[target]
    if source_type == target_type:
        return operand
    return Text(f"({target_type}){operand.within(UNARY)}", UNARY)


def loaded(memory: str, dtype: DType) -> Text:
    """Return a value read from memory, in its compute type."""
    if dtype in (DType.F16, DType.BF16):
        return Text(f"float({memory})", ATOM)
    return Text(memory, ATOM)


def stored(text: Text, source: DType, target: DType) -> str:
    """Return a value converted for a store to memory of type `target`."""
    if target == DType.F16:
        return f"__float2half({convert(text, source, DType.F32).text})"
    if target == DType.BF16:
        return f"__float2bfloat16({convert(text, source, DType.F32).text})"
    return convert(text, source, target).text if source != target else text.text


FLOAT_FUNCTIONS = {"abs": "fabs", "round": "rint", "i0": "cyl_bessel_i0"}
"""CUDA's functions that have another name than the operator."""
QUICK_HELPERS = {"div": "quick_quotient", "sqrt": "quick_root"}
"""Functions of at most 2 ulp of f32 for kernels of bf16 or f16 alone: a step of AdamW takes three quotients."""
INTRINSICS = {"exp": "__expf", "log": "__logf"}
"""Faster functions for results of 16 bits. ``__expf(x)`` errs by 2 + floor(|1.173 x|) ulp of f32; ``__logf`` by 2^-21.4
within 0.5 and 2, else by 3 ulp (CUDA C++ Programming Guide, intrinsic functions). f16 has 11 bits, f32 has 24."""
INTRINSIC_HELPERS = {"sigmoid": "quick_sigmoid"}
"""Helpers made of those: two products of bf16, the first with SiLU, took 260 us on an H200, 249 us so."""
_SAME_NAME_HELPERS = """
relu sigmoid gelu gelu_tanh sign maximum minimum digamma
"""
FLOAT_HELPERS = {
    **{name: name for name in _SAME_NAME_HELPERS.split()},
    "remainder": "python_remainder",
    "div_floor": "floor_divide",
}
INTEGER_HELPERS = {
    "div_floor": "floor_divide_integer",
    "remainder": "integer_remainder",
    "pow": "integer_power",
    "sign": "sign",
}
_WRAPPED = "add sub mul neg bitwise_not bitwise_left_shift div_floor div_trunc remainder pow abs sign"
WRAPPED = frozenset(_WRAPPED.split())
_INFIX = {
    "add": ("+", ADD),
    "sub": ("-", ADD),
    "mul": ("*", MULTIPLY),
    "div": ("/", MULTIPLY),
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "bitwise_and": ("&", BIT_AND),
    "bitwise_xor": ("^", BIT_XOR),
    "bitwise_or": ("|", BIT_OR),
    "bitwise_left_shift": ("<<", SHIFT),
    "bitwise_right_shift": (">>", SHIFT),
    "logical_and": ("&&", AND),
    "logical_or": ("||", OR),
    "logical_xor": ("!=", EQUALITY),
}


def _format(name: str, dtype: DType, operands: Sequence[Text], types: Sequence[DType]) -> Text:
    if name == "cast":
        return convert(operands[0], types[0], dtype)
    if name == "select":
        condition, if_true, if_false = operands
        text = f"{condition.within(TERNARY + 1)} ? {if_true.within(TERNARY + 1)} : {if_false.within(TERNARY)}"
        return Text(text, TERNARY)
    if name in _INFIX:
        return _infix(name, operands)
    if name in _PREFIX:
        return _PREFIX[name](operands, dtype)
    return _float_call(name, dtype, operands) if dtype.is_floating else _integer_call(name, dtype, operands, types)


def _infix(name: str, operands: Sequence[Text]) -> Text:
    symbol, precedence = _INFIX[name]
    left, right = operands
    # A bitwise operator next to a comparison is legal but unreadable: add parentheses that C++ does not need.
    inner = UNARY if BIT_OR <= precedence <= BIT_AND else precedence
    inner_right = inner if precedence in (AND, OR) else inner + 1
    return Text(f"{left.within(inner)} {symbol} {right.within(inner_right)}", precedence)


def _float_call(name: str, dtype: DType, operands: Sequence[Text]) -> Text:
    suffix = "f" if COMPUTE_TYPE[dtype] == "float" else ""
    arguments = ", ".join(operand.text for operand in operands)
    if name in FLOAT_HELPERS:
        return Text(f"{FLOAT_HELPERS[name]}({arguments})", ATOM)
    if name == "div_trunc":
        return Text(f"trunc{suffix}({operands[0].within(MULTIPLY)} / {operands[1].within(UNARY)})", ATOM)
    return Text(f"{FLOAT_FUNCTIONS.get(name, name)}{suffix}({arguments})", ATOM)


def _integer_call(name: str, dtype: DType, operands: Sequence[Text], types: Sequence[DType]) -> Text:
    arguments = ", ".join(operand.text for operand in operands)
    first = operands[0]
    if name in INTEGER_HELPERS:
        return Text(f"{INTEGER_HELPERS[name]}({arguments})", ATOM)
    if name in ("isnan", "isinf", "isfinite", "signbit"):
        return Text(f"{'(bool)' if name == 'signbit' else ''}{name}({arguments})", ATOM)
    if name in ("floor", "ceil", "round", "trunc"):
        return first
    if name == "abs":
        return Text(f"{first.within(RELATION + 1)} < 0 ? -{first.within(UNARY)} : {first.within(TERNARY)}", TERNARY)
    if name == "relu":
        return Text(f"{first.within(RELATION + 1)} < 0 ? 0 : {first.within(TERNARY)}", TERNARY)
    if name in ("div_trunc", "fmod"):
        symbol = "/" if name == "div_trunc" else "%"
        return Text(f"{first.within(MULTIPLY)} {symbol} {operands[1].within(UNARY)}", MULTIPLY)
    if name in ("maximum", "minimum"):
        symbol = ">" if name == "maximum" else "<"
        left, right = first.within(SHIFT), operands[1].within(SHIFT)
        return Text(f"{left} {symbol} {right} ? {left} : {right}", TERNARY)
    raise KeyError(name)


def _negate(operands: Sequence[Text], dtype: DType) -> Text:
    inner = operands[0].within(UNARY)
    return Text(f"-({inner})" if inner.startswith("-") else f"-{inner}", UNARY)


def _reciprocal(operands: Sequence[Text], dtype: DType) -> Text:
    return Text(f"{literal(1.0, dtype).text} / {operands[0].within(UNARY)}", MULTIPLY)


def _not(operands: Sequence[Text], dtype: DType) -> Text:
    return Text(f"!{operands[0].within(UNARY)}", UNARY)


def _bitwise_not(operands: Sequence[Text], dtype: DType) -> Text:
    return Text(f"{'!' if dtype == DType.BOOL else '~'}{operands[0].within(UNARY)}", UNARY)


_PREFIX: dict[str, Callable[[Sequence[Text], DType], Text]] = {
    "neg": _negate,
    "reciprocal": _reciprocal,
    "logical_not": _not,
    "bitwise_not": _bitwise_not,
}


def _float_literal(value: float, is_single: bool) -> Text:
    if math.isnan(value):
        return Text("CUDART_NAN_F" if is_single else "CUDART_NAN", ATOM)
    if math.isinf(value) or (is_single and math.isinf(_as_single(value))):
        name = "CUDART_INF_F" if is_single else "CUDART_INF"
        return Text(name, ATOM) if value > 0 else Text(f"-{name}", UNARY)
    text = repr(value)
    return Text(text + ("f" if is_single else ""), UNARY if text.startswith("-") else ATOM)


def _as_single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf
