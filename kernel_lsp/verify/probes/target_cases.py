"""Choose cases by what a task computes: indices that it returns or takes, and numbers that it rounds.

A maximum among the first 65,536 elements of a row does not test indices beyond them, and random numbers have no ties.

Faulty roundings and conversions to integers fail at odd numbers with as many digits as their type, which adding and
subtracting a constant loses, and at the neighbours of one half. Only inputs that the code rounds unchanged, or times a
power of two, are given them: any other step before the rounding has roundings of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.operators import is_a, number
from kernel_lsp.core.task import Graph, GraphNode, Task, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.model.cases import LATE_EXTREMES, Case, OperationKind, Sizes, n_elements, shape_of
from kernel_lsp.verify.probes.finder import MAX_WIDE_ELEMENTS, Budget, Finder, PlanFinder
from kernel_lsp.verify.probes.probed_kernel import HALFWAY

TIED_ROWS, TIED_COLUMNS = "tied_rows", "tied_columns"
BEYOND_16_BITS = 70_001
BEYOND_24_BITS = (1 << 24) + (1 << 20) + 1
LONG = 1_031
BESIDE_MANY, BESIDE_FEW = (9, 3, 1), (1,)
BESIDE_TIES = (19, 9, 3, 1)
"""Sizes of the other dims; the first usable one is taken. An index is returned for each row, and taken from one table
for all."""
MAX_ELEMENTS = 1 << 20
MAX_TABLE_ELEMENTS = 1 << 23
MAX_VAST_ELEMENTS = 1 << 25
_TO_INTEGER = re.compile(r"^cvt\.r[nzmp]i(?:\.\w+)*\.[su](?:32|64)\.f32$")

Dims = tuple[str, ...]


def index_cases(finder: Finder, wide: Sequence[Sizes]) -> list[Case]:
    """Return cases with many tied extremes, where indices are returned. Extremes and given indices also lie beyond 16
    bits, unless one of the `wide` sizes reaches as far."""
    graph, kind, cases = finder.task.forward, finder.direction, list[Case]()
    for dims, family in dict.fromkeys(_picked(graph)):
        sizes = _first(finder, dims, LONG, BESIDE_TIES, MAX_ELEMENTS)
        cases += [_case(kind, sizes, family)] if sizes else []
    for dims in dict.fromkeys(dims for dims, _ in _picked(graph)):
        if all(_n_places(dims, sizes) < BEYOND_16_BITS for sizes in wide):
            sizes = _first(finder, dims, BEYOND_16_BITS, BESIDE_FEW, MAX_TABLE_ELEMENTS)
            cases += [_case(kind, sizes, LATE_EXTREMES)] if sizes else []
    for dims in dict.fromkeys(_indexed(graph)):
        sizes = _first(finder, dims, BEYOND_16_BITS, BESIDE_MANY, MAX_TABLE_ELEMENTS)
        cases += [_case(kind, sizes, LATE_EXTREMES)] if sizes else []
    return list(dict.fromkeys(cases))


def cases_beyond_exact_indices(finder: PlanFinder, built: Built) -> Iterator[Case]:
    """Yield cases with indices that f32 does not represent, for a kernel that converts f32 to integers."""
    task = finder.task
    every = dict.fromkeys((*(dims for dims, _ in _picked(task.forward, "reduction", "scan")), *_indexed(task.forward)))
    if not every or not any(_TO_INTEGER.match(statement.opcode) for statement in read_ptx(built.ptx).statements):
        return
    for dims in every:
        sizes = _first(finder, dims, BEYOND_24_BITS, BESIDE_FEW, MAX_VAST_ELEMENTS)
        if sizes:
            yield _case(finder.direction, sizes, LATE_EXTREMES)


def _first(finder: Finder, dims: Dims, n_places: int, beside: Sequence[int], max_elements: int) -> Sizes | None:
    """Return the first sizes with `n_places` indices along these dims together; None where there are none. A held dim
    stays unchanged."""
    own = [symbol for symbol in finder.symbols if symbol.name in dims]
    if not own:
        return None
    each = n_places if len(own) == 1 else math.ceil(n_places ** (1 / len(own)))
    tried = (sizes for other in beside for sizes in finder.aligned_with(own, each, other))
    return finder.find(
        (sizes for sizes in tried if _n_places(dims, sizes) >= n_places), Budget(max_elements, MAX_WIDE_ELEMENTS)
    )


def _n_places(dims: Dims, sizes: Sizes) -> int:
    return math.prod(sizes.get(dim, 1) for dim in dims)


def _case(kind: OperationKind, sizes: Sizes, family: str) -> Case:
    is_far = family == LATE_EXTREMES
    return Case(kind, tuple(sorted(sizes.items())), family, 0, "forward", may_not_end=is_far)


def _picked(graph: Graph, *kinds: str) -> Iterator[tuple[Dims, str]]:
    """Yield the dims along which the graph's operators, of these kinds if any are named, return indices, and the family
    of ties along them."""
    types = graph.value_types()
    for node in graph.nodes:
        shape, window, is_flat = _shape(node, types), number(node.op, "window"), is_a(node.op, "flat_index")
        if not shape or (kinds and not is_a(node.op, *kinds)):
            continue
        if window is not None:
            yield shape[-window:], TIED_ROWS
        if not is_a(node.op, "returns_indices") or (len(node.types) < 2 and not is_flat):
            continue
        dim = _dim(node)
        if dim is None and is_flat:
            yield shape, TIED_ROWS
        else:
            along = -1 if dim is None else dim
            yield (shape[along],), TIED_ROWS if along in (-1, len(shape) - 1) else TIED_COLUMNS


def _indexed(graph: Graph) -> Iterator[Dims]:
    """Yield the dims that the graph's inputs index."""
    types = graph.value_types()
    for node in graph.nodes:
        shape = _shape(node, types)
        if not shape:
            continue
        if is_a(node.op, "loss"):
            yield (shape[1 if len(shape) > 1 else 0],)
        elif number(node.op, "index") is not None:
            yield (shape[_dim(node) or 0],)
        elif is_a(node.op, "index_list") and isinstance(node.arguments[1], list | tuple):
            yield from ((shape[dim],) for dim, index in enumerate(node.arguments[1]) if index is not None)


def _shape(node: GraphNode, types: dict[str, TensorType]) -> Dims:
    """Return the shape of the node's first tensor."""
    return types[node.reads[0]].shape if node.reads and node.reads[0] in types else ()


def _dim(node: GraphNode) -> int | None:
    """Return the dim that a node works along; None where it has none."""
    position = number(node.op, "dim")
    if position is None:
        return None
    given = node.arguments[position] if position < len(node.arguments) else node.keywords.get("dim")
    return given if isinstance(given, int) and not isinstance(given, bool) else None


SIGNIFICAND_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Significand bits of IEEE 754's types, and of bfloat16."""


_Range = tuple[Fraction | float, Fraction | float]
"""The smallest and the largest value, both inclusive."""


@dataclass(frozen=True)
class _Flow:
    """A value that is an input times `1 / step`, rounded or not."""

    input: str
    n_bits: int
    step: Fraction = Fraction(1)


@dataclass(frozen=True)
class _Rounded:
    """A rounding of a flow; `made` is the integer type that it is converted to, if any."""

    flow: _Flow
    made: DType | None


def rounds(graph: Graph) -> bool:
    """Check whether the graph rounds to integers, explicitly or by a conversion."""
    types = graph.value_types()
    return any(_is_rounding(node) or _is_conversion(node, types) for node in graph.nodes)


def rounding_cases(task: Task, kind: OperationKind, known: Sequence[Sizes]) -> list[Case]:
    """Return two small cases, one with neighbours of halves and one with large integers. Fewer where the code rounds no
    input unchanged or where its integers are too narrow."""
    if kind != "forward" or not rounds(task.forward):
        return []
    rounded, (least, most) = _rounded(task.forward)
    small = [v * one.flow.step for one in rounded for v in _near_halves(one.flow.n_bits)]
    large = [v * one.flow.step for one in rounded if one.made is not None for v in _large(one.flow.n_bits)]
    return [
        Case(kind, _with_room(task, known, rounded, len(values)), HALFWAY, 0, "forward", values=values)
        for values in (_numbers(small), _numbers([v for v in large if least <= v <= most]))
        if values
    ]


def _rounded(graph: Graph) -> tuple[list[_Rounded], _Range]:
    """Return the roundings of unchanged inputs, and the range of inputs that no conversion of the graph overflows
    for."""
    types = graph.value_types()
    flows = {
        name: _Flow(name, SIGNIFICAND_BITS[type_.dtype])
        for name, type_ in zip(graph.inputs, graph.input_types, strict=True)
        if type_.dtype in SIGNIFICAND_BITS
    }
    limited: set[str] = set()
    found: list[_Rounded] = []
    ranges: list[_Range] = []
    for node in graph.nodes:
        source = next((flows[name] for name in node.reads if name in flows), None)
        is_limited = any(name in limited for name in node.reads)
        if _is_conversion(node, types):
            ranges += [] if is_limited else [_range_of(types[node.name].dtype, source)]
            found += [_Rounded(source, types[node.name].dtype)] if source is not None else []
            continue
        if _has_two_limits(node) or (is_limited and is_a(node.op, "keeps_digits")):
            limited.add(node.name)
        step = _step(node)
        if source is None or step is None or node.name not in types:
            continue
        flow = replace(source, step=source.step * step)
        found += [_Rounded(flow, None)] if _is_rounding(node) else []
        n_bits = SIGNIFICAND_BITS.get(types[node.name].dtype)
        if n_bits is not None and not _is_modular(node):
            flows[node.name] = replace(flow, n_bits=min(flow.n_bits, n_bits))
    least, most = (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else (-math.inf, math.inf)
    return list(dict.fromkeys(found)), (least, most)


def _has_two_limits(node: GraphNode) -> bool:
    return is_a(node.op, "limits") and len(node.arguments) > 2 and None not in node.arguments


def _step(node: GraphNode) -> Fraction | None:
    """Return the distance of inputs that map to consecutive integers. None for a node that does not keep the digits of
    its first argument, or has none."""
    if is_a(node.op, "decimals"):
        return None
    if not is_a(node.op, "factor", "divisor"):
        return Fraction(1) if is_a(node.op, "keeps_digits", "cast") else None
    number = node.arguments[1] if len(node.arguments) > 1 else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not number:
        return None
    factor = abs(Fraction(number))
    is_power = factor.numerator & (factor.numerator - 1) == 0 and factor.denominator & (factor.denominator - 1) == 0
    return None if not is_power else 1 / factor if is_a(node.op, "factor") else factor


def _is_rounding(node: GraphNode) -> bool:
    return is_a(node.op, "rounding", "modular") or _is_rounding_by_mode(node)


def _is_conversion(node: GraphNode, types: dict[str, TensorType]) -> bool:
    """Check whether the node converts floats to integers."""
    if not is_a(node.op, "cast") or not node.reads or not node.types or node.types[0] is None:
        return False
    read, made = types.get(node.reads[0]), node.types[0].dtype
    return read is not None and read.dtype.is_floating and not made.is_floating and made is not DType.BOOL


def _is_modular(node: GraphNode) -> bool:
    """Check whether the node returns a remainder, or an integer quotient: neither is the input any longer."""
    return is_a(node.op, "modular") or _is_rounding_by_mode(node)


def _is_rounding_by_mode(node: GraphNode) -> bool:
    return is_a(node.op, "modular_by_mode") and node.keywords.get("rounding_mode") is not None


def _near_halves(n_bits: int) -> Iterator[Fraction]:
    """Yield the halves, one, and their neighbours."""
    unit = Fraction(1, 1 << n_bits)
    half, one = Fraction(1, 2), Fraction(1)
    for near in (half - unit / 2, half, half + unit, one - unit, one, one + 2 * unit, 3 * half - 2 * unit, 3 * half):
        yield from (near, -near)
    yield from (5 * half, -5 * half)


def _large(n_bits: int) -> Iterator[Fraction]:
    """Yield odd numbers up to the type's largest, and halves up to those."""
    last, half = Fraction(1 << n_bits), Fraction(1, 2)
    for top in (last, last / 2):
        for odd in (top - 1, top - 3, top / 2 + 1, top / 2 + 3, top * 3 / 4 + 1):
            yield from (odd, -odd)
    for between in (last / 4 + half, last / 4 + 3 * half, last / 2 - half, last / 8 + half, last / 4 - half):
        yield from (between, -between)


def _range_of(dtype: DType, source: _Flow | None) -> _Range:
    """Return the inputs that an integer type holds. An empty range where earlier steps are unknown."""
    if source is None:
        return 0.0, 0.0
    n_bits = 8 * dtype.itemsize
    least, most = (0, (1 << n_bits) - 1) if dtype is DType.U8 else (-(1 << (n_bits - 1)), (1 << (n_bits - 1)) - 1)
    return least * source.step, most * source.step


def _numbers(some: Sequence[Fraction]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(float(number) for number in some))


def _with_room(
    task: Task, known: Sequence[Sizes], rounded: Sequence[_Rounded], n_values: int
) -> tuple[tuple[str, int], ...]:
    """Return the smallest of the sizes at which each rounded input has twice as many elements; else the largest."""
    names = {one.flow.input for one in rounded}
    types = [type_ for name, type_ in zip(task.forward.inputs, task.forward.input_types, strict=True) if name in names]
    by_room = sorted(known, key=lambda sizes: min(n_elements(shape_of(type_, sizes)) for type_ in types))
    enough = (s for s in by_room if min(n_elements(shape_of(type_, s)) for type_ in types) >= 2 * n_values)
    return tuple(sorted(next(enough, by_room[-1]).items()))
