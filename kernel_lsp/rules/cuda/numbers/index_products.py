"""Find the 32-bit products of a kernel whose size its launches state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.numbers.widths import MAX_DEPTH, MAX_NARROW
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import TextRange

_COMPARISON = re.compile(r"(?<![\w.>])(?<![-+*/%])(?<![-+*/%] )(\w+)\s*(<=?|>=?|[=!]=)(?![<>=])\s*([^;,?|&)]*)")
_REVERSED = re.compile(r"(?<![\w.])(\d\w*|[A-Z][A-Z\d_]*)\s*>=?\s*(\w+)\b")
_SIZE = re.compile(r"\w+(?:\s*\*\s*\w+)*\s*")
_UNSIGNED = ("unsigned", "unsigned int", "uint32_t")


@dataclass(frozen=True, slots=True)
class IndexProduct:
    """A product of at most `factor` times the parameters at `places` times the blocks along `axes` of the grid. It is
    computed in a type that ends at `limit`."""

    range: TextRange
    text: str
    places: tuple[int, ...]
    factor: int
    limit: int
    axes: tuple[int, ...] = ()


def index_products(function: Function) -> Iterator[IndexProduct]:
    """Yield the 32-bit products in indices, sizes and bounds of loops, each set of parameters once."""
    sizes = {
        each.name: place
        for place, each in enumerate(function.parameters)
        if each.is_integer and not each.is_wide_integer and not each.writes
    }
    axes = _axes(function) if _BY_BLOCK.search(function.text) else {}
    if (len(sizes) < 2 and not axes) or "*" not in function.text:
        return
    bounds = _bounds(function, sizes) | {name: [axis] for name, axis in axes.items() if name not in sizes}
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for value in _values(function):
        for node in _products_within(function, value):
            factors = _factors(function, node, bounds)
            names = [] if factors is None else factors[1]
            places = tuple(sorted(sizes[name] for name in names if name in sizes))
            along = tuple(sorted(_AXES[name] for name in names if name in _AXES))
            if factors is None or len(places) + 2 * len(along) < 2 or (places, along) in seen:
                continue
            seen.add((places, along))
            used = function.names_in(node)
            is_unsigned = "blockIdx" in used or any(v.element in _UNSIGNED for n in used for v in function.named(n))
            limit = 2 * MAX_NARROW + 1 if is_unsigned else MAX_NARROW
            where = function.file.parsed.range(node), function.source(node)
            yield IndexProduct(*where, places, factors[0], limit, along)


_BY_BLOCK = re.compile(r"blockIdx\.\w\s*(?:\*(?!\s*blockDim)|[;,)])|\*\s*blockIdx")
"""A block's index that is multiplied with a size, or that a variable holds."""
_AXES = {"blockIdx.x": 0, "blockIdx.y": 1, "blockIdx.z": 2}


def _axes(function: Function) -> dict[str, str]:
    """Return the index of the block that each 32-bit variable holds, and each index by itself. One that the kernel
    compares has a bound of its own."""
    compared = {found[0] or found[1] for found in _COMPARED.findall(function.text)}
    found = {axis: axis for axis in _AXES if axis in function.text}
    for variable in function.all_variables():
        axis = "" if variable.value is None else function.source(variable.value)
        if axis in found and variable.is_integer and not variable.is_wide_integer and not variable.writes:
            found[variable.name] = axis
    return {name: axis for name, axis in found.items() if name not in compared and axis not in compared}


_COMPARED = re.compile(r"(\w+(?:\.\w+)?)\s*(?:[<>]=?|[=!]=)(?![<>=])|(?<![<>-])[<>]=?\s*(\w+(?:\.\w+)?)")


def _products_within(function: Function, value: Node) -> Iterator[Node]:
    """Yield the products in a value that are no factor of another product."""
    for node in function.binaries_within(value):
        around = function.parent(node)
        while around is not None and around.type == "parenthesized_expression":
            around = function.parent(around)
        is_factor = around is not None and around.type == "binary_expression" and function.operator(around) == "*"
        if function.operator(node) == "*" and not is_factor:
            yield node


def _values(function: Function) -> Iterator[Node]:
    for subscript in function.subscripts:
        yield from (node for node in [subscript.child_by_field_id(fields.INDICES)] if node is not None)
    for variable in function.all_variables():
        if variable.value is not None and variable.is_integer:
            yield variable.value
    yield from function.conditions()


def _bounds(function: Function, sizes: dict[str, int]) -> dict[str, list[str]]:
    """Return the parameters whose product bounds each 32-bit integer from above. One with two bounds has none, nor has
    one that is compared with anything else but 0: a tile's height may be the tighter bound."""
    found: dict[str, list[str]] = {name: [name] for name in sizes}
    text = " ".join(function.text.split())
    for name, operator, bound in _COMPARISON.findall(text):
        if bound.strip() == "0" or name in sizes:
            continue
        factors = re.findall(r"\w+", bound) if operator in ("<", ">=") and _SIZE.fullmatch(bound) else []
        is_bound = sizes.keys() >= set(factors) and all(_may_reach_sizes(each) for each in function.named(name))
        found[name] = factors if is_bound and found.get(name, factors) == factors else []
    tight = {name for _, name in _REVERSED.findall(text)}
    return {name: size for name, size in found.items() if size and name not in tight and function.named(name)}


def _may_reach_sizes(variable: Variable) -> bool:
    """Return whether a variable is a 32-bit integer that is more than a thread's place in its block."""
    value = b"" if variable.value is None else variable.value.text or b""
    is_of_block = b"threadIdx" in value and b"blockIdx" not in value and not variable.writes
    return variable.is_integer and not variable.is_wide_integer and not is_of_block


def _is_wide_constant(function: Function, node: Node) -> bool:
    """Return whether a constant makes a product one of 64 bits: ``1024LL``, or a name that is declared so."""
    if node.type == "number_literal":
        return function.source(node).lower().endswith("l")
    return not function.names_in(node).isdisjoint(function.file.wide_constants)


def _factors(
    function: Function, node: Node | None, bounds: dict[str, list[str]], depth: int = 0
) -> tuple[int, list[str]] | None:
    """Return the constant and the parameters whose product bounds a value; None for a wide or an unbounded one."""
    if node is None or depth > MAX_DEPTH:
        return None
    is_combined = node.type == "binary_expression" and function.operator(node) in ("*", "+")
    value = None if is_combined else function.constant(node)
    if value is not None:
        return (value, []) if value > 0 and not _is_wide_constant(function, node) else None
    if node.type in ("identifier", "field_expression"):
        size = bounds.get(function.source(node))
        return None if size is None else (1, size)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _factors(function, node.named_children[0], bounds, depth + 1)
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    if not is_combined:
        return None
    first, second = (_factors(function, side, bounds, depth + 1) for side in (left, right))
    if first is None or second is None:
        return None
    if function.operator(node) == "+":  # y * w + x is below h * w
        is_constant = not first[1] and not second[1]
        return (first[0] + second[0], []) if is_constant else max(first, second, key=lambda each: len(each[1]))
    return first[0] * second[0], first[1] + second[1]
