"""Choose cases for tasks that return indices or take them.

A maximum among the first 65,536 elements of a row does not test indices beyond them, and random numbers have no ties.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from kernel_lsp.core.operators import is_a, number
from kernel_lsp.core.task import Graph, GraphNode, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.model.cases import LATE_EXTREMES, Case, OperationKind, Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.finder import MAX_WIDE_ELEMENTS, Budget, Finder, finder_of

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


def cases_beyond_exact_indices(prepared: Prepared, kind: OperationKind, built: Built) -> Iterator[Case]:
    """Yield cases with indices that f32 does not represent, for a kernel that converts f32 to integers."""
    task = prepared.task
    every = dict.fromkeys((*(dims for dims, _ in _picked(task.forward, "reduction", "scan")), *_indexed(task.forward)))
    if not every or not any(_TO_INTEGER.match(statement.opcode) for statement in read_ptx(built.ptx).statements):
        return
    finder = finder_of(prepared, kind)
    for dims in every:
        sizes = _first(finder, dims, BEYOND_24_BITS, BESIDE_FEW, MAX_VAST_ELEMENTS)
        if sizes:
            yield _case(kind, sizes, LATE_EXTREMES)


# --- below: sizes


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


# --- below: dims that places are along


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
