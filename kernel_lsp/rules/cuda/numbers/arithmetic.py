"""KL220 and KL226: doubles among floats, and sums in half precision."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import LOOP_WORDS, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit, words

MAX_FLOAT = 3.4028235e38
MIN_NORMAL_FLOAT = 1.1754944e-38
_FLOAT_WORDS = re.compile(r"\b(?:float[234]?|half2?|__half2?|__nv_bfloat162?)\b")
_DOUBLE_WORDS = re.compile(r"\bdouble[234]?\b")
_DOUBLE_LITERAL = re.compile(r"(?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?")
_OVERLOADED = words("pow fmod atan2 hypot fma fmax fmin copysign max min")
"""Functions of several numbers that are those of doubles where one of these is a double."""
_HALF_TYPES = frozenset(("half", "__half", "__nv_bfloat16", "nv_bfloat16"))


@declare(
    "KL220",
    "double-literal",
    WARNING,
    on="device",
    summary="A double literal makes float arithmetic double",
    why="""
    `x * 0.5` converts x to double, multiplies in double precision at 1/2 to 1/64 of the speed, and converts back.
    Write `0.5f`.
    """,
    bad="""
    __global__ void halve(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * 0.5;
    }
    """,
    good="""
    __global__ void halve(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * 0.5f;
    }
    """,
)
def double_literal(function: Function) -> Iterator[Hit]:
    if not function.doubles or _DOUBLE_WORDS.search(function.text) or not _FLOAT_WORDS.search(function.text):
        return
    for number in function.doubles:
        text = function.source(number)
        if _DOUBLE_LITERAL.fullmatch(text.lstrip("-")) and _meets_a_float(function, number):
            fixes = (rewrite(function.file, number, f"{text}f"),) if _fits_float(text) else ()
            yield hit(function.file, number, f"`{text}` is a double: the arithmetic around it is too", *fixes)


@declare(
    "KL226",
    "half-accumulator",
    WARNING,
    on="device",
    needs=("half bfloat16", LOOP_WORDS, "+ __hadd hfma"),
    summary="A sum is accumulated in half precision",
    why="""
    A half has 11 bits, a bfloat16 8: from 2048 (256) on, adding 1 changes nothing. Accumulate in float and convert the
    result.
    """,
    bad="""
    #include <cuda_fp16.h>

    __global__ void sum(const __half* __restrict__ x, __half* __restrict__ out, int n) {
        __half total = __float2half(0.0f);
        for (int i = 0; i < n; ++i) total += x[i];
        out[0] = total;
    }
    """,
    good="""
    #include <cuda_fp16.h>

    __global__ void sum(const __half* __restrict__ x, __half* __restrict__ out, int n) {
        float total = 0.0f;
        for (int i = 0; i < n; ++i) total += __half2float(x[i]);
        out[0] = __float2half(total);
    }
    """,
)
def half_accumulator(function: Function) -> Iterator[Hit]:
    file = function.file
    for write in function.assignments:
        variable = function.variable(write.child_by_field_id(fields.LEFT))
        if variable is None or variable.element not in _HALF_TYPES or variable.is_pointer:
            continue
        loop = function.loop_around(write)
        is_outer = loop is not None and variable.declaration.start_byte < loop.start_byte
        if is_outer and _adds_to_itself(function, write, variable.name):
            yield hit(file, write, f"`{variable.name}` loses what it adds as it grows: accumulate in float")


def _meets_a_float(function: Function, number: Node) -> bool:
    """Return whether the literal is combined with anything but literals, in a function that names no doubles."""
    node = number
    for parent in function.around(number):
        if parent.type == "binary_expression":
            sides = (parent.child_by_field_id(fields.LEFT), parent.child_by_field_id(fields.RIGHT))
            if any(side is not None and side.id != node.id and not _is_literal(function, side) for side in sides):
                return True
        elif parent.type == "assignment_expression":
            return function.operator(parent) in ("+=", "-=", "*=", "/=")
        elif parent.type == "conditional_expression":
            branches = (parent.child_by_field_id(fields.CONSEQUENCE), parent.child_by_field_id(fields.ALTERNATIVE))
            others = [branch for branch in branches if branch is not None and branch.id != node.id]
            return len(others) == 1 and not _is_literal(function, others[0])
        elif parent.type == "argument_list":
            call = function.parent(parent)
            is_chosen = call is not None and function.callee(call).removeprefix("std::") in _OVERLOADED
            others = [each for each in parent.named_children if each.id != node.id]
            return is_chosen and not all(_is_literal(function, each) for each in others)
        elif parent.type not in ("unary_expression", "parenthesized_expression"):
            return False
        node = parent
    return False


def _is_literal(function: Function, node: Node) -> bool:
    """Return whether the node has no name in it, or is of a type parameter, which may be double itself."""
    array = node.child_by_field_id(fields.ARGUMENT) if node.type == "subscript_expression" else node
    variable = function.variable(array)
    if variable is not None and re.search(rf"(?:typename|class) {variable.element}\b", function.template_head):
        return True
    text = re.sub(r"\d[\w.']*(?:[eE][+-]?\d+)?[fFuUlL]*", "", function.source(node))
    return re.search(r"[A-Za-z_]", text) is None


def _fits_float(text: str) -> bool:
    value = abs(float(text.replace("'", "")))
    return value == 0 or MIN_NORMAL_FLOAT <= value <= MAX_FLOAT


def _adds_to_itself(function: Function, write: Node, name: str) -> bool:
    if function.operator(write) == "+=":
        return True
    right = write.child_by_field_id(fields.RIGHT)
    if right is None or name not in function.names_in(right):
        return False
    if right.type == "call_expression":
        return function.callee(right) in ("__hadd", "__hfma", "hfma")
    return right.type == "binary_expression" and function.operator(right) == "+"
