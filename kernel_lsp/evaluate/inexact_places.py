"""Does a kernel compute places in ways that are exact up to some million elements and wrong beyond, where nobody looks
who has not this reason to?

A place is what follows from the numbers of threads and blocks, and not from data. `(int)((i + 0.5f) / columns)` is
rounded in single precision, and `__umulhi(i, 0xffffffff / columns + 1)` is a division up to a size only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.evaluate.cases import OperationKind, Sizes, captured_sizes, graph_of, is_usable, shape_of
from kernel_lsp.evaluate.prepare import Prepared
from kernel_lsp.toolchain.ptx_text import Statement, mentioned, read_ptx

BEYOND = (1 << 24) + (1 << 20)
"""Elements: from 2^24 on not every integer is a number of f32, and rounding takes some into the next row."""
MAX_ELEMENTS = 1 << 26
"""Of all inputs and outputs of a case with so many."""
_TO_FLOAT = re.compile(r"^cvt\.rn\.f32\.[su](?:32|64)\b")
_TO_INTEGER = re.compile(r"^cvt\.r[nzmp]i(?:\.sat)?(?:\.ftz)?\.[su](?:32|64)\.f32\b")
_NUMBER = re.compile(r"-?(?:0[xX])?[0-9a-fA-F]+U?$")
_THREAD = ("%tid.", "%ctaid.")
_BOUNDED = ("rem.", "div.s", "div.u")
_DATA = ("ld.global", "ld.shared", "ld.local", "atom", "shfl", "call")


def sizes_beyond_exact_places(prepared: Prepared, kind: OperationKind, built: Built) -> list[Sizes]:
    """Sizes inside the contract with so many elements, for a kernel with such places; else none."""
    if not _has_inexact_places(read_ptx(built.ptx, "").statements):
        return []
    task, captured = prepared.task, captured_sizes(prepared.task)
    n_captured = max((_n_elements(task, kind, captured)), 1)
    for symbol in task.symbols:
        sizes = {**captured, symbol.name: -(-symbol.captured * BEYOND // n_captured)}
        if is_usable(task, kind, sizes, MAX_ELEMENTS) and prepared.holds(kind, sizes):
            return [sizes]
    return []


# --- below: elements, and data flow


def _n_elements(task: Task, kind: OperationKind, sizes: Sizes) -> int:
    """Of the largest output."""
    outputs = (output.type for output in graph_of(task, kind).outputs)
    return max((math.prod(shape_of(type_, sizes)) for type_ in outputs if type_ is not None), default=0)


def _has_inexact_places(statements: Iterable[Statement]) -> bool:
    by_function: dict[str, dict[str, Statement]] = {}
    for statement in statements:
        for register in statement.results:
            by_function.setdefault(statement.function, {}).setdefault(register, statement)
    return any(
        _is_through_float(one, makers) or _is_high_product(one, makers)
        for makers in by_function.values()
        for one in makers.values()
    )


def _is_through_float(statement: Statement, makers: Mapping[str, Statement]) -> bool:
    if not _TO_INTEGER.match(statement.opcode):
        return False
    widened = [one for one in _behind(statement, makers) if _TO_FLOAT.match(one.opcode)]
    return any(_is_place(one, makers) for one in widened)


def _is_high_product(statement: Statement, makers: Mapping[str, Statement]) -> bool:
    """Whether it is the upper half of a place times a number that no compiler has chosen."""
    if not statement.opcode.startswith("mul.hi."):
        return False
    factors = [name for name in mentioned(statement.sources) if name in makers]
    has_number = any(_NUMBER.match(factor.strip()) for factor in statement.sources.split(","))
    return len(factors) == 2 and not has_number and _is_place(statement, makers)


def _is_place(statement: Statement, makers: Mapping[str, Statement]) -> bool:
    """Whether it follows from a thread's number, and from nothing that was loaded. What is left by a division is no
    larger than a dim: the coordinates of an interpolation are exact."""
    behind = list(_behind(statement, makers))
    if any(one.opcode.startswith((*_DATA, *_BOUNDED)) for one in behind):
        return False
    return any(name.startswith(_THREAD) for one in (statement, *behind) for name in mentioned(one.sources))


def _behind(statement: Statement, makers: Mapping[str, Statement]) -> Iterator[Statement]:
    """The statements that its value follows from, each once."""
    pending, seen = [statement], set[str]()
    while pending:
        for name in mentioned(pending.pop().sources):
            if name in makers and name not in seen:
                seen.add(name)
                pending.append(makers[name])
                yield makers[name]
