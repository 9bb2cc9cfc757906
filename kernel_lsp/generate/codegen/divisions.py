"""Quotients and remainders that several indices share or that are named coordinates: declared once, before use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.index_text import IndexWriter
from kernel_lsp.generate.codegen.operators import ATOM, Text
from kernel_lsp.generate.index import Index, Indirect, Quotient, Remainder, as_index

Division = Quotient | Remainder


def declare_divisions(indices: Iterable[Index], writer: IndexWriter) -> None:
    """Declare in the writer's block what the indices divide more than once, the innermost first."""
    counted: Counter[Division] = Counter()
    for index in indices:
        _count(index, counted)
    _declare_dividends(counted, writer)
    for atom in sorted(counted, key=_nesting):
        is_named = as_index(atom).digest in writer.block.kernel.coordinates
        if (is_named or counted[atom] > 1) and _can_declare(atom, writer.block):
            _declare(atom, writer)


# --- below: one division


def _count(index: Index, counted: Counter[Division]) -> None:
    for atom in _divisions(index):
        counted[atom] += 1
        if counted[atom] == 1:
            _count(atom.dividend, counted)


def _divisions(index: Index) -> list[Division]:
    return [atom for monomial, _ in index.terms for atom in monomial if isinstance(atom, Quotient | Remainder)]


def _declare_dividends(counted: Counter[Division], writer: IndexWriter) -> None:
    """A sum that several divisions divide."""
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
    """How many divisions deep it is along the first of each dividend, and the digest of the innermost one."""
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
