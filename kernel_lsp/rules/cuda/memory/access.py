"""KL211, KL215 and KL216: memory access patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import INFORMATION, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.kernel_texts import assigned
from kernel_lsp.rules.cuda.members import members_of_parameter
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CudaFile as File
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.simulation.watcher import Fault
from kernel_lsp.rules.cuda.threads.threads import (
    BLOCK_SOURCES,
    THREAD_SOURCES,
    block_names,
    is_loop_variable,
    thread_names,
)
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

MAX_BLOCK_THREADS = 1024
"""A block's index times a constant of at most as much counts threads, as `blockIdx.x * blockDim.x` does."""
_NARROW_INDICES = ("int", "int32_t", "unsigned", "unsigned int", "uint32_t")
_WIDE_CASTS = ("size_t", "long long", "int64_t", "uint64_t", "ptrdiff_t", "long")
_WIDE_LITERAL = re.compile(r"\b\d[\d'a-fA-FxX]*[uU]?[lL]")

_GRID_NAMES = frozenset(("blockIdx", "blockDim", "gridDim", "threadIdx"))


@declare(
    "KL211",
    "bank-conflict",
    WARNING,
    on="device",
    needs=("__shared__",),
    summary="A column of a shared tile lies in one bank",
    why="""
    Shared memory has 32 banks of 4 bytes. In `float tile[32][32]` all elements of a column are in the same bank, so a
    warp that reads a column is served one thread at a time. One more element per row spreads the column.
    """,
    bad="""
    __global__ void transpose(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[32][32];
        tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * n + threadIdx.x];
        __syncthreads();
        out[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
    }
    """,
    good="""
    __global__ void transpose(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[32][33];
        tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * n + threadIdx.x];
        __syncthreads();
        out[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
    }
    """,
)
def bank_conflict(function: Function) -> Iterator[Hit]:
    yield from simulated_hits(function, "KL211", _padding_fix)


@declare(
    "KL215",
    "index-overflow",
    WARNING,
    on="device",
    needs=("blockIdx gridDim [", "size_t int64_t ptrdiff_t long", "*"),
    summary="A product is computed in 32 bits and then stored in 64",
    why="""
    `blockIdx.x * n` is a 32-bit product: it wraps before it is widened, and so is `ids[i] * n` of loaded 32-bit
    indices. Widen one factor first. When everything fits 32
    bits, the variable can be an int. A product of the grid's own numbers (`blockIdx.x * blockDim.x`) wraps from 2³²
    threads on, which few launches have: that is information.
    """,
    bad="""
    __global__ void fill_row(float* __restrict__ out, int n) {
        size_t i = blockIdx.x * n + threadIdx.x;
        if (threadIdx.x < n) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void fill_row(float* __restrict__ out, int n) {
        size_t i = static_cast<size_t>(blockIdx.x) * n + threadIdx.x;
        if (threadIdx.x < n) out[i] = 0.0f;
    }
    """,
)
def index_overflow(function: Function) -> Iterator[Hit]:
    file = function.file
    for variable in function.all_variables():
        if variable.value is None or not variable.is_wide_integer:
            continue
        text = function.source(variable.value)
        if any(cast in text for cast in _WIDE_CASTS) or _WIDE_LITERAL.search(text):
            continue
        product = _narrow_product(function, variable.value)
        first = None if product is None else _first_factor(product)
        if product is not None and first is not None:
            wide = variable.element
            fix = rewrite(file, first, f"static_cast<{wide}>({function.source(first)})")
            message, severity = "32-bit overflow: the product wraps before it is widened", None
            if function.names_in(product) <= _GRID_NAMES:
                message, severity = "32-bit overflow from 2^32 threads on: widen a factor of the product", INFORMATION
            yield Hit(file.parsed.range(product), message, (fix,), severity)


@declare(
    "KL216",
    "narrow-loop-index",
    WARNING,
    on="device",
    needs=("size_t int64_t ptrdiff_t long .",),
    summary="An `int` counts up to a 64-bit size, or is compared with one",
    why="For sizes from 2³¹ on the counter overflows, which is undefined. Count in the type of the size.",
    bad="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        for (size_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = 0.0f;
    }
    """,
)
def narrow_loopindex_of(function: Function) -> Iterator[Hit]:
    file = function.file
    for loop in function.loops:
        condition = loop.child_by_field_id(fields.CONDITION)
        if loop.type != "for_statement" or condition is None or condition.type != "binary_expression":
            continue
        index, size = (condition.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT))
        counter, wide = function.variable(index), _given_wide_type(function, size)
        if counter is None or not wide or function.operator(condition) not in ("<", "<="):
            continue
        if counter.is_integer and not counter.is_wide_integer and is_loop_variable(function, counter):
            message = f"32-bit counter `{counter.name}` against the 64-bit size `{function.source(size or condition)}`"
            yield hit(file, condition, message, *_retyped(file, counter, wide))
    for grid_index, bound, wide in _compared_grid_indices(function):
        size_text = function.source(bound)
        message = f"32-bit index `{grid_index.name}` against the 64-bit size `{size_text}`: it overflows from 2^31 on"
        yield hit(file, grid_index.declaration, message, *_retyped(file, grid_index, wide))
    for variable, product, factor in _products_widened_elsewhere(function):
        message = f"32-bit product for `{variable.name}`: `{factor}` is widened elsewhere, here it wraps from 2^31 on"
        yield hit(file, product, message)


_WIDE = r"(?:std::)?(?:size_t|u?int64_t|long long|ptrdiff_t|long)"
_WIDENED = re.compile(
    rf"(?:static_cast<\s*{_WIDE}\s*>\s*\([^()]*\)|\(\s*{_WIDE}\s*\)\s*[\w.]+|\b{_WIDE}\s*\([^()]*\))"
    r"\s*\*\s*(\w+)\b(?!\s*[(.])"
)
_NARROWED = re.compile(r"=\s*(?:static_cast<\s*int\s*>\s*\(|\(int\)\s*)\s*\w+(?:\.|->)(\w+)\s*\)?\s*;")
_WIDE_MEMBER = re.compile(r"\b(?:size_t|u?int64_t|long long)\s+([\w\s,]+);")


def _products_widened_elsewhere(function: Function) -> Iterator[tuple[Variable, Node, str]]:
    """Yield each `int` that holds a product of an index that blocks or loaded elements choose with a size that the
    function multiplies in 64 bits elsewhere, or that it has narrowed itself."""
    wide = set(_WIDENED.findall(function.text)) - {"blockDim", "gridDim", "threadIdx", "blockIdx"}
    read = [(name, found[1]) for name, found in assigned(_NARROWED, function.text)]
    declared = _WIDE_MEMBER.findall(function.file.parsed.text) if read else []
    members = {name.strip() for found in declared for name in found.split(",")}
    narrowed = {name for name, member in read if member in members}
    wide |= narrowed
    is_widened = re.search(
        rf"(?:static_cast<\s*{_WIDE}\s*>\s*\([^()]*\)|\(\s*{_WIDE}\s*\)\s*[\w.]+)\s*\*", function.text
    )
    for variable in function.all_variables() if is_widened else ():
        value = variable.value
        if value is not None and variable.is_integer and not variable.is_wide_integer and _is_volume(function, value):
            yield variable, value, "another product of the grid"
    for variable in function.all_variables() if wide else ():
        if variable.value is None or not variable.is_integer or variable.is_wide_integer:
            continue
        for product in function.binaries_within(variable.value):
            sides = [product.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT)]
            names = [function.names_in(side) for side in sides]
            factor = next((name for name in wide if {name} in names), "")
            if function.operator(product) != "*" or not factor or function.constant(sides[0]) is not None:
                continue
            other = names[1] if names[0] == {factor} else names[0]
            is_large = any(_is_loaded(function, name) or factor in narrowed for name in other)
            if is_large and not any(cast in function.source(product) for cast in _WIDE_CASTS):
                yield variable, product, factor
                break


def _is_volume(function: Function, value: Node) -> bool:
    """Return whether the value is an index in three dims: a product of a block's index and two sizes or more."""
    if any(cast in function.source(value) for cast in _WIDE_CASTS):
        return False
    for product in function.binaries_within(value):
        sides = [product.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT)]
        if function.operator(product) != "*" or any(s is None or function.constant(s) is not None for s in sides):
            continue
        inner = [each for side in sides if side is not None for each in function.binaries_within(side)]
        is_nested = any(
            function.operator(each) == "*" and function.constant(each.child_by_field_id(fields.LEFT)) is None
            for each in inner
        )
        if is_nested and not function.names_in(product).isdisjoint(block_names(function)):
            return True
    return False


def _is_loaded(function: Function, name: str) -> bool:
    """Return whether a name has only values that are loaded elements."""
    values = [v.value for v in function.named(name)]
    return bool(values) and all(value is not None and value.type == "subscript_expression" for value in values)


def _compared_grid_indices(function: Function) -> Iterator[tuple[Variable, Node, str]]:
    """Yield each `int` grid index with the 64-bit size that bounds it, and the type of that."""
    found: dict[int, tuple[Variable, Node, str]] = {}
    for condition in function.conditions():
        comparison = condition.named_children[0] if condition.type == "condition_clause" else condition
        if comparison.type != "binary_expression" or function.operator(comparison) not in ("<", "<=", ">", ">="):
            continue
        size = comparison.child_by_field_id(fields.RIGHT)
        index, wide = function.variable(comparison.child_by_field_id(fields.LEFT)), _given_wide_type(function, size)
        if index is None or index.value is None or size is None or not wide:
            continue
        is_narrow = index.is_integer and not index.is_wide_integer and not is_loop_variable(function, index)
        value = function.source(index.value)
        is_of_grid = "blockDim" in value or ("threadIdx" in value and not _QUOTIENT.search(value))
        if is_narrow and "blockIdx" in value and is_of_grid:
            found.setdefault(id(index), (index, size, wide))
    yield from found.values()


def _given_wide_type(function: Function, node: Node | None, depth: int = 0) -> str:
    """Return the type of a 64-bit size that a kernel is given: a parameter, a member of one, a product of them, or a
    name for it. An empty text for others."""
    if node is None or depth > MAX_STEPS:
        return ""
    if node.type == "field_expression":
        owner, name = function.variable(node.child_by_field_id(fields.ARGUMENT)), node.child_by_field_name("field")
        is_given = owner is not None and owner in function.parameters and name is not None
        inside = members_of_parameter(function.file.members, owner) if is_given and owner is not None else {}
        member = None if name is None else inside.get(function.source(name))
        return member.element if member is not None and member.is_wide_integer else ""
    if node.type == "binary_expression" and function.operator(node) == "*":
        sides = [node.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT)]
        is_open = all(function.constant(side) is None for side in sides)
        is_of_grid = not function.names_in(node).isdisjoint(block_names(function) | thread_names(function))
        types = (_given_wide_type(function, side, depth + 1) or _cast_to_wide(function, side) for side in sides)
        return next(filter(None, types), "") if is_open and not is_of_grid else ""
    size = function.variable(node)
    if size is None or not size.is_wide_integer:
        return ""
    is_named = not size.writes and _given_wide_type(function, size.value, depth + 1) != ""
    return size.element if size in function.parameters or is_named else ""


def _cast_to_wide(function: Function, node: Node | None) -> str:
    """Return the type of ``static_cast<int64_t>(rows)`` of a parameter, an empty text for other factors."""
    found = _WIDE_CAST.fullmatch("" if node is None else function.source(node))
    is_given = found is not None and any(each.name == found["name"] for each in function.parameters)
    return found["type"] or found["old"] if found is not None and is_given else ""


_QUOTIENT = re.compile(r"[/%]|>>")
MAX_STEPS = 8
"""Maximum names and factors that a size is followed through."""
_WIDE_CAST = re.compile(rf"(?:static_cast<\s*(?P<type>{_WIDE})\s*>|\(?(?P<old>{_WIDE})\)?)\s*\(?\s*(?P<name>\w+)\s*\)?")


def _padding_fix(function: Function, fault: Fault) -> tuple[QuickFix, ...]:
    """Return a fix that pads each row by one element, if the tile is only used with all its indices."""
    row = fault.node.child_by_field_id(fields.ARGUMENT)
    tile = None if row is None else function.variable(row.child_by_field_id(fields.ARGUMENT))
    size = tile.sizes[-1] if tile is not None and len(tile.sizes) > 1 else None
    if tile is None or size is None:
        return ()
    edit = function.file.parsed.insert(size.end_byte, " + 1")
    new_text = f"{function.source(size)} + 1"
    if size.type == "number_literal":
        new_text = str((function.constant(size) or 0) + 1)
        edit = function.file.parsed.replace(size, new_text)
    n_uses = function.source(function.body).count(tile.name)
    n_subscripts = sum(function.variable(s.child_by_field_id(fields.ARGUMENT)) is tile for s in function.subscripts)
    return (QuickFix(f"Pad the row to `[{new_text}]`", (edit,), n_uses == n_subscripts + 1),)


def _narrow_product(function: Function, value: Node) -> Node | None:
    """Return the 32-bit product ``blockIdx.x * n`` that is the value, or an operand of its sum."""
    node: Node | None = value
    for _ in range(8):
        if node is None or node.type not in ("binary_expression", "parenthesized_expression"):
            return None
        if node.type == "parenthesized_expression":
            node = node.named_children[0] if node.named_children else None
            continue
        operator = function.operator(node)
        if operator == "*":
            return node if _is_narrow_index_product(function, node) else None
        if operator not in ("+", "-"):
            return None
        node = node.child_by_field_id(fields.LEFT)
    return None


def _first_factor(product: Node) -> Node | None:
    """Return the leftmost factor of ``a * b * c``, which is evaluated first."""
    left = product.child_by_field_id(fields.LEFT)
    while left is not None and left.type == "binary_expression":
        left = left.child_by_field_id(fields.LEFT)
    return left


def _is_narrow_index_product(function: Function, product: Node) -> bool:
    names, loaded = function.names_in(product), _loaded_indices(function, product)
    is_of_grid = "gridDim" in names or not names.isdisjoint(block_names(function))
    factors = (product.child_by_field_id(fields.LEFT), product.child_by_field_id(fields.RIGHT))
    is_of_blocks = any((function.constant(factor) or MAX_BLOCK_THREADS + 1) <= MAX_BLOCK_THREADS for factor in factors)
    if "size_t" in names or not (is_of_grid or loaded) or (is_of_blocks and not loaded):
        return False
    known = THREAD_SOURCES | BLOCK_SOURCES | {"blockDim", "gridDim", "x", "y", "z"}
    for name in names - known:
        variables = function.named(name)
        if not variables and name not in function.file.constants:
            return False
        if any(not variable.is_integer or variable.is_wide_integer for variable in variables if variable not in loaded):
            return False
    return True


def _loaded_indices(function: Function, product: Node) -> list[Variable]:
    """Return the arrays of 32-bit integers of which an element is a factor of the product."""
    sides = (product.child_by_field_id(fields.LEFT), product.child_by_field_id(fields.RIGHT))
    elements = (side for side in sides if side is not None and side.type == "subscript_expression")
    arrays = (function.variable(element.child_by_field_id(fields.ARGUMENT)) for element in elements)
    return [a for a in arrays if a is not None and a.is_pointer and a.element in _NARROW_INDICES]


def _retyped(file: File, index: Variable, new_type: str) -> tuple[QuickFix, ...]:
    type_node = index.declaration.child_by_field_id(fields.TYPE)
    if type_node is None:
        return ()
    return (QuickFix(f"Count in `{new_type}`", (file.parsed.replace(type_node, new_type),), True),)
