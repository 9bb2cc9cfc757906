"""Declare quotients and remainders that several indices share, or that are named coordinates, once and before use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.index_text import IndexWriter
from kernel_lsp.generate.codegen.operators import ADD, ATOM, MULTIPLY, UNARY, Text
from kernel_lsp.generate.ir.index import (
    ONE,
    ZERO,
    Index,
    Indirect,
    Quotient,
    Remainder,
    Variable,
    as_index,
    is_nonnegative,
    substitute,
)
from kernel_lsp.generate.ir.sizes import coefficient

Division = Quotient | Remainder


def declare_divisions(indices: Iterable[Index], writer: IndexWriter) -> None:
    """Declare divisions that occur more than once in the indices, the innermost first, in the writer's block."""
    counted: Counter[Division] = Counter()
    for index in indices:
        _count(index, counted)
    _declare_dividends(counted, writer)
    for atom in sorted(counted, key=_nesting):
        is_named = as_index(atom).digest in writer.block.kernel.coordinates
        if (is_named or counted[atom] > 1) and _can_declare(atom, writer.block):
            _declare(atom, writer)


def declare_lane_divisions(indices: Iterable[Index], lane: Variable, writer: IndexWriter) -> dict[bytes, Text]:
    """Declare, once per pack, quotients whose dividend grows by 1 from lane to lane. Return their value in each lane,
    where only few lanes have to divide."""
    named: dict[bytes, Text] = {}
    counted: Counter[Division] = Counter()
    for index in indices:
        _count(index, counted)
    for dividend, divisor in dict.fromkeys((atom.dividend, atom.divisor) for atom in sorted(counted, key=_nesting)):
        if _steps_by_lane(dividend, divisor, lane, writer.block):
            named |= _declare_lanes(dividend, divisor, lane, writer)
    return named


def _steps_by_lane(dividend: Index, divisor: Index, lane: Variable, block: Block) -> bool:
    start = substitute(dividend, {lane: ZERO})
    is_plain = divisor.constant is None and lane not in divisor.variables and block.lookup(dividend.digest) is None
    return (
        is_plain
        and coefficient(dividend, lane) == ONE
        and block.knows(start.variables | divisor.variables)
        and is_nonnegative(dividend)
        and not _reads_memory(Quotient(dividend, divisor))
    )


def _declare_lanes(dividend: Index, divisor: Index, lane: Variable, writer: IndexWriter) -> dict[bytes, Text]:
    block = writer.block
    start, size = writer.text(substitute(dividend, {lane: ZERO})), writer.text(divisor).within(UNARY)
    type_, v = block.kernel.index_type, lane.name
    quotient = block.declare(f"{lane.name}_block", type_, f"{start.within(MULTIPLY)} / {size}")
    rest = block.declare(f"{lane.name}_within", type_, f"{start.text} - {quotient} * {size}")
    block.kernel.use("near_quotient")
    arguments = f"({rest} + {v}, {writer.text(divisor).text})"
    return {
        as_index(Quotient(dividend, divisor)).digest: Text(f"{quotient} + near_quotient{arguments}", ADD),
        as_index(Remainder(dividend, divisor)).digest: Text(f"near_remainder{arguments}", ATOM),
    }


# --- one division


def _count(index: Index, counted: Counter[Division]) -> None:
    for atom in _divisions(index):
        counted[atom] += 1
        if counted[atom] == 1:
            _count(atom.dividend, counted)


def _divisions(index: Index) -> list[Division]:
    return [atom for monomial, _ in index.terms for atom in monomial if isinstance(atom, Quotient | Remainder)]


def _declare_dividends(counted: Counter[Division], writer: IndexWriter) -> None:
    """Declare dividends that several divisions share."""
    block = writer.block
    dividends: Counter[Index] = Counter()
    for atom in counted:
        if len(atom.dividend.terms) > 1 and _can_declare(atom, block):
            dividends[atom.dividend] += 1
    for dividend in sorted(dividends, key=lambda index: index.digest):
        if dividends[dividend] > 1 and block.lookup(dividend.digest) is None:
            name = block.declare("position", block.kernel.index_type, writer.text(dividend).text)
            block.named[dividend.digest] = Text(name, ATOM)


def _can_declare(atom: Division, block: Block) -> bool:
    return not _reads_memory(atom) and block.lookup(as_index(atom).digest) is None and block.knows(atom.variables)


def _reads_memory(atom: Division) -> bool:
    return any(
        isinstance(inner, Indirect) or (isinstance(inner, Quotient | Remainder) and _reads_memory(inner))
        for monomial, _ in (*atom.dividend.terms, *atom.divisor.terms)
        for inner in monomial
    )


def _nesting(atom: Division) -> tuple[int, bytes]:
    """Return the nesting depth along the first division of each dividend, and the digest of the innermost division."""
    depth = 1
    while inner := _divisions(atom.dividend):
        depth, atom = depth + 1, inner[0]
    return depth, atom.digest


def _declare(atom: Division, writer: IndexWriter) -> None:
    index = as_index(atom)
    block = writer.block
    text = writer.division_text(atom)
    name = block.kernel.coordinates.get(index.digest) or _division_name(atom)
    block.named[index.digest] = Text(block.declare(name, block.kernel.index_type, text.text), ATOM)


def _division_name(atom: Division) -> str:
    variable = min((v.name for v in atom.variables), default="size")
    return f"{variable}_{'block' if isinstance(atom, Quotient) else 'within'}"
