"""Detect indices that are exact only up to some million elements, and choose sizes beyond.

An index depends on thread and block numbers, and not on data. `(int)((i + 0.5f) / columns)` is rounded in single
precision, and `__umulhi(i, 0xffffffff / columns + 1)` equals the division only up to some size.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.definition_use import Function, Source, functions_of
from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement, read_ptx
from kernel_lsp.verify.model.cases import OperationKind, Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.finder import FAR, finder_of
from kernel_lsp.verify.probes.sizes import with_elements

BEYOND = (1 << 24) + (1 << 20)
"""Elements beyond which f32 skips integers (2^24), so that rounding moves some into the next row."""
WORDS, ROWS = 1 << 16, 70_001
_TO_WORD = re.compile(r"^cvt\.[su]16\.[su](?:32|64)\b")
_TO_FLOAT = re.compile(r"^cvt\.rn\.f32\.[su](?:32|64)\b")
_TO_INTEGER = re.compile(r"^cvt\.r[nzmp]i(?:\.sat)?(?:\.ftz)?\.[su](?:32|64)\.f32\b")
_NUMBER = re.compile(r"-?(?:0[xX])?[0-9a-fA-F]+U?$")
_BOUNDED = ("rem.", "div.s", "div.u")


def sizes_beyond_exact_places(prepared: Prepared, kind: OperationKind, built: Built) -> list[Sizes]:
    """Return sizes inside the contract with that many elements, for a kernel with such indices; else none."""
    if not has_inexact_places(read_ptx(built.ptx, "")):
        return []
    return list(itertools.islice(with_elements(finder_of(prepared, kind), BEYOND), 1))


def has_inexact_places(ptx: PtxText) -> bool:
    """Check whether a kernel computes an index in single precision, or by a rounded reciprocal."""
    return any(_is_through_float(*each) or _is_high_product(*each) for each in _values(ptx))


def has_narrow_places(built: Built) -> bool:
    """Check whether a kernel keeps a value derived from the block index in 16 bits."""
    return any(_is_narrow(*each) for each in _values(read_ptx(built.ptx, "")))


def sizes_beyond_narrow_places(prepared: Prepared, kind: OperationKind, built: Built) -> list[Sizes]:
    """Return sizes inside the contract with more blocks, else more threads, than 16 bits count, for a kernel with
    16-bit indices. They are the first cheap ones."""
    if not has_narrow_places(built):
        return []
    finder, found = finder_of(prepared, kind), list[tuple[bool, Sizes]]()
    few = (finder.with_sizes(finder.small(2), [symbol], ROWS) for symbol in finder.symbols)
    for sizes in itertools.chain(few, with_elements(finder, BEYOND)):
        if finder.fits(sizes, FAR) and prepared.can_bind(kind, sizes):
            launches = [step for step in prepared.bind(kind, sizes).steps if isinstance(step, BoundLaunch)]
            found.append((any(launch.n_blocks > WORDS for launch in launches), sizes))
            if found[-1][0]:
                break
    return [sizes for _, sizes in (*found[:1], *(one for one in found[1:] if one[0]))]


# --- below: data flow


def _values(ptx: PtxText) -> Iterator[tuple[Statement, Function]]:
    """Yield the statements that first set a register, each with its function."""
    return ((made[0], one) for one in functions_of(ptx).values() for made in one.definitions.values())


def _is_narrow(statement: Statement, function: Function) -> bool:
    is_cut = _TO_WORD.match(statement.opcode) or (
        statement.opcode.startswith("and.b") and any(_is_word(one.strip()) for one in statement.sources.split(","))
    )
    return bool(is_cut) and _is_place(statement, function) and Source.BLOCK in function.provenance(statement)


def _is_word(source: str) -> bool:
    """Check whether the operand is a mask of 15 or 16 bits."""
    return bool(_NUMBER.match(source)) and int(source.rstrip("U"), 0) in (WORDS - 1, WORDS // 2 - 1)


def _is_through_float(statement: Statement, function: Function) -> bool:
    if not _TO_INTEGER.match(statement.opcode):
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
