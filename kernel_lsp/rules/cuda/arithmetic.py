"""KL220 to KL229: arithmetic that is slower or less exact than it looks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import HINT, INFORMATION, LOOP_WORDS, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit
from kernel_lsp.rules.words import words

_DOUBLE_LITERAL = re.compile(r"(?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?")
_SINGLE_LITERAL = re.compile(r"((?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?)[fF]")
MAX_FLOAT = 3.4028235e38
MIN_NORMAL_FLOAT = 1.1754944e-38
_FLOAT_WORDS = re.compile(r"\b(?:float[234]?|half2?|__half2?|__nv_bfloat162?)\b")
_DOUBLE_WORDS = re.compile(r"\bdouble[234]?\b")
_POWERS = frozenset(f"{prefix}{name}" for prefix in ("", "std::") for name in ("powf", "pow", "__powf"))
_DOUBLE_FUNCTIONS = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt pow sin cos tan sinh cosh tanh erf erfc fabs floor
    ceil round fmod atan atan2 hypot fma fmax fmin copysign
    """
)
_RENAMED = {"max": "fmaxf", "min": "fminf", "abs": "fabsf"}
_FAST_FUNCTIONS = {
    "__expf": "expf", "__exp10f": "exp10f", "__logf": "logf", "__log2f": "log2f", "__log10f": "log10f",
    "__sinf": "sinf", "__cosf": "cosf", "__tanf": "tanf", "__powf": "powf", "__fdividef": "a division",
}  # fmt: skip
_HALF_TYPES = frozenset(("half", "__half", "__nv_bfloat16", "nv_bfloat16"))


@declare(
    "KL220",
    "double-literal",
    WARNING,
    on="device",
    needs=("float half bfloat16",),
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
    if not _is_float_code(function):
        return
    file = function.file
    for number in function.doubles:
        text = function.source(number)
        if _DOUBLE_LITERAL.fullmatch(text) and _promotes(function, number):
            fixes = (rewrite(file, number, f"{text}f"),) if _fits_float(text) else ()
            yield hit(file, number, f"`{text}` is a double: the arithmetic around it is too", *fixes)


@declare(
    "KL221",
    "double-function",
    WARNING,
    on="device",
    needs=("float half bfloat16",),
    summary="A function of floats is called with a double literal",
    why="""
    With one double argument the overload for doubles is chosen: `pow(x, 2.0)` or `max(x, 0.0)` run in double precision,
    or do not compile, for lack of a best overload. Call the float function with float literals.
    """,
    bad="""
    __global__ void relu(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = max(x[i], 0.0);
    }
    """,
    good="""
    __global__ void relu(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = fmaxf(x[i], 0.0f);
    }
    """,
)
def double_function(function: Function) -> Iterator[Hit]:
    if not _is_float_code(function):
        return
    file = function.file
    for call in function.calls:
        name = function.callee(call).removeprefix("std::")
        if name not in _DOUBLE_FUNCTIONS and name not in _RENAMED:
            continue
        literals = [a for a in function.arguments(call) if _is_double_literal(function, a)]
        if literals and len(literals) < len(function.arguments(call)):
            new_name = _RENAMED.get(name, f"{name}f")
            yield hit(file, call, f"this is `{name}` of doubles", *_float_call_fix(function, call, new_name, literals))


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
            yield hit(file, node, "a division in each round: multiply by the reciprocal", fix)


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
    file = function.file
    for node in function.quotients:
        operator = function.operator(node)
        divisor = function.variable(node.child_by_field_id(fields.RIGHT))
        dividend = function.variable(node.child_by_field_id(fields.LEFT))
        if divisor is None or not divisor.is_integer or function.constant(divisor.name_node) is not None:
            continue
        are_integers = operator == "%" or (dividend is not None and dividend.is_integer)
        if are_integers and not _is_declared_constant(function, divisor.value) and _in_loop_body(function, node):
            yield hit(file, node, f"`{operator}` by a variable takes 20 instructions and more, in each round")


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


# --- below: doubles among floats


def _is_float_code(function: Function) -> bool:
    """Device code with a double literal, perhaps, that speaks of floats, never of doubles, and is no template over
    types."""
    if not function.doubles or not function.is_on_device or function.is_template_of_types:
        return False
    text = function.text
    is_double = "double" in text and _DOUBLE_WORDS.search(text) is not None
    return not is_double and _FLOAT_WORDS.search(text) is not None


def _promotes(function: Function, number: Node) -> bool:
    """Whether the literal makes an operation double: it stands in arithmetic with something that is no literal."""
    node = number
    for parent in function.around(number):
        if parent.type in ("unary_expression", "parenthesized_expression"):
            node = parent
            continue
        if parent.type == "binary_expression":
            sides = (parent.child_by_field_id(fields.LEFT), parent.child_by_field_id(fields.RIGHT))
            other = next((side for side in sides if side is not None and side.id != node.id), None)
            if other is not None and not _is_constant_text(function.source(other)):
                return True
            node = parent
            continue
        if parent.type == "assignment_expression":
            return function.operator(parent) in ("+=", "-=", "*=", "/=")
        return parent.type == "conditional_expression" and _is_double_choice(function, parent, node)
    return False


def _is_double_choice(function: Function, choice: Node, node: Node) -> bool:
    """``c ? x : 0.0`` with a float x."""
    branches = (choice.child_by_field_id(fields.CONSEQUENCE), choice.child_by_field_id(fields.ALTERNATIVE))
    others = [branch for branch in branches if branch is not None and branch.id != node.id]
    return len(others) == 1 and not _is_constant_text(function.source(others[0]))


def _is_constant_text(text: str) -> bool:
    return re.search(r"[A-Za-z_]\w*", re.sub(r"\d[\w.']*(?:[eE][+-]?\d+)?[fFuUlL]*", "", text)) is None


def _is_double_literal(function: Function, node: Node) -> bool:
    return _DOUBLE_LITERAL.fullmatch(function.source(node).strip("()- ")) is not None


def _fits_float(text: str) -> bool:
    value = abs(float(text.replace("'", "")))
    return value == 0 or MIN_NORMAL_FLOAT <= value <= MAX_FLOAT


def _float_call_fix(function: Function, call: Node, new_name: str, literals: list[Node]) -> tuple[QuickFix, ...]:
    callee = call.child_by_field_id(fields.FUNCTION)
    texts = [function.source(node).strip("()- ") for node in literals]
    if callee is None or not all(_fits_float(text) for text in texts):
        return ()
    edits = [function.file.parsed.replace(callee, new_name)]
    for node in literals:
        end = node.start_byte + len(function.source(node).rstrip(") ").encode())
        edits.append(function.file.parsed.insert(end, "f"))
    return (QuickFix(f"Use `{new_name}` and float literals", tuple(edits), _is_float_call(function, call)),)


def _is_float_call(function: Function, call: Node) -> bool:
    """Whether every argument that is no literal is a float for sure; of integers the double overload may be meant."""
    names = [a for a in function.arguments(call) if not _is_double_literal(function, a)]
    return all(_is_float_value(function, node) for node in names)


def _is_float_value(function: Function, node: Node) -> bool:
    if node.type == "subscript_expression":
        node = node.child_by_field_id(fields.ARGUMENT) or node
    variable = function.variable(node)
    return variable is not None and variable.element == "float"


def _small_exponent(text: str) -> int | None:
    """2, 3 or 4 written as a float or integer."""
    match = re.fullmatch(r"([234])(?:\.0*)?[fF]?", text)
    return int(match[1]) if match else None


def _is_power_of_two(value: float) -> bool:
    return value > 0 and value.hex().startswith("0x1.0000000000000")


# --- divisors and sums


def _is_declared_constant(function: Function, value: Node | None) -> bool:
    """A local name for a constant or for a template parameter, which the compiler knows."""
    if value is None:
        return False
    names = function.names_in(value)
    return names.isdisjoint(function.variables) and names.isdisjoint(("blockDim", "gridDim", "blockIdx", "threadIdx"))


def _in_loop_body(function: Function, node: Node) -> bool:
    """In the body of a loop, and not computable before it: one operand changes there."""
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
