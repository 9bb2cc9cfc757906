"""KL222 to KL226: arithmetic with a hidden cost in speed or accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import HINT, INFORMATION, LOOP_WORDS, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

_DOUBLE_LITERAL = re.compile(r"(?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?")
_SINGLE_LITERAL = re.compile(r"((?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?)[fF]")
_POWERS = frozenset(f"{prefix}{name}" for prefix in ("", "std::") for name in ("powf", "pow", "__powf"))
_FAST_FUNCTIONS = {
    "__expf": "expf", "__exp10f": "exp10f", "__logf": "logf", "__log2f": "log2f", "__log10f": "log10f",
    "__sinf": "sinf", "__cosf": "cosf", "__tanf": "tanf", "__powf": "powf", "__fdividef": "a division",
}  # fmt: skip
_HALF_TYPES = frozenset(("half", "__half", "__nv_bfloat16", "nv_bfloat16"))


@declare(
    "KL222",
    "power-by-constant",
    INFORMATION,
    on="device",
    needs=("pow",),
    summary="`powf` with a small integer exponent",
    why="""
    `powf` takes some dozens of instructions for any exponent, where a product takes one. The compiler replaces it only
    with fast-math.
    """,
    bad="""
    __device__ float square(float x) {
        return powf(x, 2.0f);
    }
    """,
    good="""
    __device__ float square(float x) {
        return x * x;
    }
    """,
)
def power_by_constant(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_POWERS):
        arguments = function.arguments(call)
        if len(arguments) != 2:
            continue
        exponent = _small_exponent(function.source(arguments[1]))
        if exponent is None or _DOUBLE_LITERAL.fullmatch(function.source(arguments[1])):
            continue
        fixes: tuple[QuickFix, ...] = ()
        if arguments[0].type == "identifier":
            product = " * ".join([function.source(arguments[0])] * exponent)
            fixes = (rewrite(file, call, f"({product})"),)
        yield hit(
            file, call, f"a power takes many instructions, a product of {exponent} factors {exponent - 1}", *fixes
        )


@declare(
    "KL223",
    "division-by-constant",
    HINT,
    on="device",
    needs=("/", LOOP_WORDS),
    patterns=(r"/\s*(?:[\d.]|/\*)",),
    summary="A float is divided by a constant in a loop",
    why="""
    An exact division takes 8 or more instructions, a product one. The compiler replaces it only when the reciprocal is
    exact, as for powers of two. The product differs in the last bit.
    """,
    bad="""
    __global__ void mean(const float* __restrict__ x, float* __restrict__ out, int n) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] / 3.0f;
        out[threadIdx.x] = sum;
    }
    """,
    good="""
    __global__ void mean(const float* __restrict__ x, float* __restrict__ out, int n) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * (1.0f / 3.0f);
        out[threadIdx.x] = sum;
    }
    """,
)
def division_by_constant(function: Function) -> Iterator[Hit]:
    file = function.file
    for node in function.divisions:
        right = node.child_by_field_id(fields.RIGHT)
        left = node.child_by_field_id(fields.LEFT)
        if right is None or left is None or left.type == "number_literal":
            continue
        match = _SINGLE_LITERAL.fullmatch(function.source(right))
        if match and not _is_power_of_two(float(match[1].replace("'", ""))) and function.loop_around(node):
            text = f"{function.source(left)} * (1.0f / {function.source(right)})"
            fix = QuickFix("Multiply by the reciprocal", (file.parsed.replace(node, text),), False)
            yield hit(file, node, "division in each iteration: multiply by the reciprocal", fix)


@declare(
    "KL224",
    "fast-math",
    HINT,
    on="device",
    needs=("__exp __log __sin __cos __tan __pow __fdividef",),
    summary="A fast intrinsic with a limited range or accuracy",
    why="""
    `__expf(x)` has an error of 2 + ⌊|1.173 x|⌋ ulp, `__sinf` one of 2^-21 only within ±π, and `__fdividef` gives 0 for
    a divisor between 2^126 and 2^128 (CUDA C++ Programming Guide, intrinsic functions). If the kernel is bound by
    memory, the exact function costs nothing.
    """,
    bad="""
    __device__ float gate(float x) {
        return 1.0f / (1.0f + __expf(-x));
    }
    """,
    good="""
    __device__ float gate(float x) {
        return 1.0f / (1.0f + expf(-x));
    }
    """,
)
def fast_math(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_FAST_FUNCTIONS):
        name = function.callee(call)
        exact = _FAST_FUNCTIONS[name]
        yield hit(file, call, f"`{name}` is less exact than {exact if ' ' in exact else f'`{exact}`'}")


@declare(
    "KL225",
    "division-in-loop",
    INFORMATION,
    on="device",
    needs=("/ %", LOOP_WORDS),
    patterns=(r"[/%](?<!//)(?<!\*/)\s*(?:[A-Za-z_]|/\*)",),
    summary="An integer division or remainder by a variable in a loop",
    why="""
    GPUs have no integer division: by a variable it takes 20 instructions and more. Divide once before the loop, count
    along, or make the divisor a template parameter.
    """,
    bad="""
    __global__ void gather(const float* __restrict__ x, float* __restrict__ out, int n, int width) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i % width];
    }
    """,
    good="""
    template <int WIDTH>
    __global__ void gather(const float* __restrict__ x, float* __restrict__ out, int n) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i % WIDTH];
    }
    """,
)
def division_in_loop(function: Function) -> Iterator[Hit]:
    for node in function.quotients:
        if _divides_at_run_time(function, node) and _in_loop_body(function, node):
            message = f"`{function.operator(node)}` by a variable takes 20 instructions or more in each iteration"
            yield hit(function.file, node, message)


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


# --- below: constants


def _small_exponent(text: str) -> int | None:
    """Return 2, 3 or 4, written as a float or integer; None for other text."""
    match = re.fullmatch(r"([234])(?:\.0*)?[fF]?", text)
    return int(match[1]) if match else None


def _is_power_of_two(value: float) -> bool:
    return value > 0 and value.hex().startswith("0x1.0000000000000")


# --- divisors and sums

_SIZES_OF_LAUNCH = re.compile(r"(?:blockDim|gridDim)\s*\.\s*[xyz]")


def _divides_at_run_time(function: Function, node: Node) -> bool:
    """Return whether this is an integer division by a variable or launch dimension, unknown at compile time."""
    right = node.child_by_field_id(fields.RIGHT)
    dividend, divisor = function.variable(node.child_by_field_id(fields.LEFT)), function.variable(right)
    are_integers = function.operator(node) == "%" or (dividend is not None and dividend.is_integer)
    if right is None or not are_integers:
        return False
    if divisor is None:
        return _SIZES_OF_LAUNCH.fullmatch(function.source(right)) is not None
    is_known = function.constant(divisor.name_node) is not None or _is_declared_constant(function, divisor.value)
    return divisor.is_integer and not is_known


def _is_declared_constant(function: Function, value: Node | None) -> bool:
    """Return whether the value is a local name for a constant or template parameter, known at compile time."""
    if value is None:
        return False
    names = function.names_in(value)
    return names.isdisjoint(function.variables) and names.isdisjoint(("blockDim", "gridDim", "blockIdx", "threadIdx"))


def _in_loop_body(function: Function, node: Node) -> bool:
    """Return whether the node is in a loop body and not loop-invariant: the loop modifies one of its operands."""
    loop = function.loop_around(node)
    body = None if loop is None else loop.child_by_field_id(fields.BODY)
    if loop is None or body is None or not body.start_byte <= node.start_byte < body.end_byte:
        return False
    for name in function.names_in(node):
        for variable in function.named(name):
            starts = [variable.declaration.start_byte, *(write.start_byte for write in variable.writes)]
            if any(loop.start_byte <= start < loop.end_byte for start in starts):
                return True
    return False


def _adds_to_itself(function: Function, write: Node, name: str) -> bool:
    if function.operator(write) == "+=":
        return True
    right = write.child_by_field_id(fields.RIGHT)
    if right is None or name not in function.names_in(right):
        return False
    if right.type == "call_expression":
        return function.callee(right) in ("__hadd", "__hfma", "hfma")
    return right.type == "binary_expression" and function.operator(right) == "+"
