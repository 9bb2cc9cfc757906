"""Detect indices and sums that are exact in floating point only up to some size, and choose sizes beyond."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.task import Graph, GraphNode, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import Function, PtxText, Source, Statement, read_ptx
from kernel_lsp.verify.model.cases import (
    ALIGNMENTS,
    GREATEST_INTEGERS,
    LATE_EXTREMES,
    Sizes,
    n_elements,
    shape_of,
)
from kernel_lsp.verify.probes.finder import FAR, MAX_WIDE_ELEMENTS, Budget, Finder, PlanFinder
from kernel_lsp.verify.probes.sizes import with_elements

LONG_TERMS = 1 << 17
"""Minimum terms of a long sum: any kernel sums shorter ones well enough, and a case at the captured sizes is
expensive."""
PART = 2
"""Ratio of taken to given elements from which a node combines several."""
BEYOND = (1 << 24) + (1 << 20)
"""Elements beyond which f32 skips integers (2^24), so that rounding moves some into the next row."""
WORDS, ROWS = 1 << 16, 70_001
_TO_WORD = re.compile(r"^cvt\.[su]16\.[su](?:32|64)\b")
_TO_FLOAT = re.compile(r"^cvt\.rn\.f32\.[su](?:32|64)\b")
_TO_INDEX = re.compile(r"^cvt\.r[nzmp]i(?:\.sat)?(?:\.ftz)?\.[su](?:32|64)\.f32\b")
_NUMBER = re.compile(r"-?(?:0[xX])?[0-9a-fA-F]+U?$")
_BOUNDED = ("rem.", "div.s", "div.u")


def has_one_long_sum(graph: Graph, sizes: Sizes) -> bool:
    """Check whether one result has that many terms, and nothing else in the graph combines elements: a sum subtracted
    from its own terms leaves only its error."""
    types = dict(zip(graph.inputs, graph.input_types, strict=True))
    brings: list[tuple[GraphNode, int]] = []
    for node in graph.nodes:
        made = node.types[0] if node.types else None
        if made is None:
            return False
        types[node.name] = made
        n_terms = _n_terms(node, types, sizes)
        if n_terms >= PART:
            brings.append((node, n_terms))
    return len(brings) == 1 and brings[0][1] >= LONG_TERMS and _is_float_sum(brings[0][0])


def _is_float_sum(node: GraphNode) -> bool:
    made = node.types[0]
    return made is not None and made.dtype.is_floating and is_a(node.op, "reduction") and is_a(node.op, "sums")


def _n_terms(node: GraphNode, types: Mapping[str, TensorType], sizes: Sizes) -> int:
    """Return the elements that a node takes for each one that it gives; 0 where shapes do not tell."""
    made = node.types[0]
    taken = [types[name] for name in node.reads if name in types]
    try:
        given = max(1, n_elements(shape_of(made, sizes))) if made is not None else 1
        return max((n_elements(shape_of(type_, sizes)) for type_ in taken), default=0) // given
    except ExpressionError:
        return 0


EXACT_BITS = {"f32": 24, "f64": 53}
"""Bits of the integers that the type represents exactly (IEEE 754)."""
BUDGET = Budget(1 << 25, MAX_WIDE_ELEMENTS)
_TO_INTEGER = re.compile(r"^cvt\.r[nzmp]i(?:\.\w+)*\.[su](?:32|64)\.(?P<type>f32|f64)$")


def sizes_beyond_exact_sums(finder: PlanFinder, built: Built) -> list[Sizes]:
    """Return sizes inside the contract at which the sum of the largest integers exceeds the exact range of the float
    type that a kernel converts to integers. Empty for a kernel without such a conversion, or a task without integer
    sums."""
    task, graph = finder.task, finder.graph
    added = [node for node in graph.nodes if _adds_integers(node)]
    if _takes_floats(graph):
        added = [node for node in added if _adds_truth_values(node, graph)]
    if not added:
        return []
    is_count = _takes_floats(graph) or any(is_a(node.op, "counts") for node in added)
    greatest = 1 if is_count else _greatest(task)
    kept = sorted(_kept_bits(read_ptx(built.ptx).statements))
    found = (_sizes(finder, added, (1 << n_bits) // greatest + 2) for n_bits in kept)
    return [sizes for some in found for sizes in some]


def families_of_sums(graph: Graph) -> tuple[str, ...]:
    """Return families with maximal counts or sums: all numbers are positive, or all negative."""
    return (LATE_EXTREMES, "negative") if _takes_floats(graph) else (GREATEST_INTEGERS,)


def _adds_integers(node: GraphNode) -> bool:
    made = node.types[0] if node.types else None
    is_integer = made is not None and not made.dtype.is_floating and made.dtype is not DType.BOOL
    return is_integer and is_a(node.op, "sums", "counts")


def _takes_floats(graph: Graph) -> bool:
    return any(type_.dtype.is_floating for type_ in graph.input_types)


def _adds_truth_values(node: GraphNode, graph: Graph) -> bool:
    """Check whether the node counts booleans: other values computed from floats have no known limit."""
    makers = {maker.name: maker for maker in graph.nodes}
    read = [makers[name] for name in node.reads[:1] if name in makers]
    read += [makers[name] for one in read if is_a(one.op, "cast") for name in one.reads[:1] if name in makers]
    return any(type_ is not None and type_.dtype is DType.BOOL for one in read for type_ in one.types[:1])


def _greatest(task: Task) -> int:
    """Return the odd number of the largest magnitude that an input may have; as in the family `greatest_integers`."""
    return max((abs(end) - (abs(end) % 2 == 0) for tensor in task.tensors for end in _ends(tensor)), default=1) or 1


def _ends(tensor: TaskTensor) -> tuple[int, int]:
    dtype = tensor.type.dtype
    if dtype is DType.BOOL:
        return 0, 1
    low, high = tensor.integer_range or _range_of(dtype)
    return low, high - 1


def _range_of(dtype: DType) -> tuple[int, int]:
    n_bits = 8 * dtype.itemsize
    return (0, 1 << n_bits) if dtype is DType.U8 else (-(1 << (n_bits - 1)), 1 << (n_bits - 1))


def _kept_bits(statements: Iterable[Statement]) -> set[int]:
    matches = (_TO_INTEGER.match(statement.opcode) for statement in statements)
    return {EXACT_BITS[match["type"]] for match in matches if match}


def _sizes(finder: Finder, added: list[GraphNode], n_terms: int) -> Iterator[Sizes]:
    """Yield the first sizes inside the contract, with `n_terms` terms and small other dims. With an aligned number of
    terms, its odd part is as large."""
    tried = (
        (alignment * (n_terms | 1), symbol, finder.small(1, beside), alignment)
        for alignment in ALIGNMENTS
        for beside in sorted({1, alignment})
        for symbol in _summed(finder.task, added)
    )
    long = ((size, symbol, finder.with_sizes(base, [symbol], size, by)) for size, symbol, base, by in tried)
    sizes = finder.find((sizes for size, symbol, sizes in long if sizes[symbol.name] == size), BUDGET)
    if sizes is not None:
        yield sizes


def _summed(task: Task, added: list[GraphNode]) -> tuple[Symbol, ...]:
    """Return the dims that a sum reduces. Where it reduces none, as running sums and counts do, return all of them, the
    last one first."""
    left = {dim for node in added for type_ in node.types[:1] if type_ is not None for dim in type_.shape}
    return tuple(symbol for symbol in task.symbols if symbol.name not in left) or task.symbols[::-1]


def sizes_beyond_exact_places(finder: PlanFinder, built: Built) -> list[Sizes]:
    """Return sizes inside the contract with that many elements, for a kernel with such indices; else none."""
    if not has_inexact_places(read_ptx(built.ptx)):
        return []
    return list(itertools.islice(with_elements(finder, BEYOND), 1))


def has_inexact_places(ptx: PtxText) -> bool:
    """Check whether a kernel computes an index in single precision, or by a rounded reciprocal."""
    return any(_is_through_float(*each) or _is_high_product(*each) for each in _values(ptx))


def has_narrow_places(built: Built) -> bool:
    """Check whether a kernel keeps a value derived from the block index in 16 bits."""
    return any(_is_narrow(*each) for each in _values(read_ptx(built.ptx)))


def sizes_beyond_narrow_places(finder: PlanFinder, built: Built) -> list[Sizes]:
    """Return sizes inside the contract with more blocks, else more threads, than 16 bits count, for a kernel with
    16-bit indices. They are the first cheap ones."""
    if not has_narrow_places(built):
        return []
    found = list[tuple[bool, Sizes]]()
    few = (finder.with_sizes(finder.small(2), [symbol], ROWS) for symbol in finder.symbols)
    for sizes in itertools.chain(few, with_elements(finder, BEYOND)):
        if finder.fits(sizes, FAR) and finder.can_bind(sizes):
            found.append((any(launch.n_blocks > WORDS for launch in finder.bind(sizes).launches), sizes))
            if found[-1][0]:
                break
    return [sizes for _, sizes in (*found[:1], *(one for one in found[1:] if one[0]))]


def _values(ptx: PtxText) -> Iterator[tuple[Statement, Function]]:
    """Yield the statements that first set a register, each with its function."""
    return ((made[0], one) for one in ptx.functions.values() for made in one.definitions.values())


def _is_narrow(statement: Statement, function: Function) -> bool:
    is_cut = _TO_WORD.match(statement.opcode) or (
        statement.opcode.startswith("and.b") and any(_is_word(one.strip()) for one in statement.sources.split(","))
    )
    return bool(is_cut) and _is_place(statement, function) and Source.BLOCK in function.provenance(statement)


def _is_word(source: str) -> bool:
    """Check whether the operand is a mask of 15 or 16 bits."""
    return bool(_NUMBER.match(source)) and int(source.rstrip("U"), 0) in (WORDS - 1, WORDS // 2 - 1)


def _is_through_float(statement: Statement, function: Function) -> bool:
    if not _TO_INDEX.match(statement.opcode):
        return False
    widened = [one for one in function.behind(statement) if _TO_FLOAT.match(one.opcode)]
    return any(_is_place(one, function) for one in widened)


def _is_high_product(statement: Statement, function: Function) -> bool:
    """Check whether the statement is the upper half of an index times a number that is not a compiler's constant."""
    if not statement.opcode.startswith("mul.hi."):
        return False
    factors = [name for name in statement.source_names if name in function.definitions]
    has_number = any(_NUMBER.match(factor.strip()) for factor in statement.sources.split(","))
    return len(factors) == 2 and not has_number and _is_place(statement, function)


def _is_place(statement: Statement, function: Function) -> bool:
    """Check whether the value depends on the thread index, and on nothing that was loaded. The remainder of a division
    is no larger than a dim: the coordinates of an interpolation are exact."""
    if any(one.opcode.startswith(_BOUNDED) for one in function.behind(statement)):
        return False
    origins = function.provenance(statement)
    return Source.LOADED not in origins and not origins.isdisjoint((Source.THREAD, Source.BLOCK))
