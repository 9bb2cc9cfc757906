"""Find kernels that compute with a tensor's address beyond its alignment, a null test and the order of addresses.

Tracks the pointer parameters of a kernel through its PTX, ignoring execution order. Addresses may be moved, added to,
subtracted, compared with each other and dereferenced. Their low bits, which every case varies, may become numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.toolchain.integrity.ptx_text import Function, OncePerCode, Place, Statement

N_ALIGNMENT_BITS = 7
"""Low bits of an address that may decide: alignments of up to 128 bytes."""
MAX_CLEARED = 4096
"""Bytes of the largest alignment that a pointer may be rounded down to."""
N_BITS = 64
MOVING = frozenset(("mov", "cvta", "cvt", "add", "sub", "mad", "selp", "min", "max", "or", "shfl"))
HARMLESS = frozenset(
    ("isspacep", "prefetch", "prefetchu", "ld", "ldu", "call", "ret", "createpolicy", "discard", "applypriority", "bra")
)
HARMLESS_STORES = ("st.param", "st.local")
"""Pass an argument, or keep a pointer on the thread's stack."""
PARAMETER_LOAD = "ld.param."
_PARAMETER = re.compile(r"\[\s*[\w$]+_param_(?P<position>\d+)\s*\]")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")


@dataclass(frozen=True)
class _Value:
    """A value whose bit i depends on bits up to i + shift of the addresses of `origins`. A pointer is such an address
    plus an offset."""

    origins: frozenset[int]
    shift: int = 0
    is_pointer: bool = True

    def __or__(self, other: _Value) -> _Value:
        return _Value(self.origins | other.origins, max(self.shift, other.shift), self.is_pointer and other.is_pointer)


_Values = Mapping[str, _Value]


def uses_as_data(function: Function, pointers: Collection[int]) -> Iterator[tuple[int, Place]]:
    """Yield the position of each pointer parameter that a kernel computes with, at the first such use."""
    for position, nth in _uses_as_data(function, tuple(pointers)):
        yield position, function.body[nth].place


@OncePerCode
def _uses_as_data(function: Function, pointers: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Return the position of each pointer parameter that is computed with, and the number of the first statement
    that does so."""
    values, found = _values(function, pointers), list[tuple[int, int]]()
    seen = set[int]()
    for nth in _readers(function, values):
        statement = function.body[nth]
        used = [values[name] for name in statement.source_registers if name in values]
        if used and not _is_allowed(statement, used):
            new = frozenset().union(*(value.origins for value in used)) - seen
            seen |= new
            found += [(position, nth) for position in sorted(new)]
    return tuple(found)


def _values(function: Function, pointers: Collection[int]) -> _Values:
    """Infer the values by iteration to a fixed point. A difference of two pointers into one tensor is no address; it is
    known only when all origins are, so inference starts again without the differences found."""
    differences = set[int]()
    while True:
        values = _inferred(function, pointers, differences)
        found = {nth for nth in _readers(function, values) if _is_distance(function.body[nth], values)}
        if found <= differences:
            return values
        differences |= found


def _inferred(function: Function, pointers: Collection[int], differences: Collection[int]) -> _Values:
    skipped = {id(function.body[nth]) for nth in differences}

    def value_of(statement: Statement, values: _Values) -> _Value | None:
        return None if id(statement) in skipped else _result(statement, values, pointers)

    origins = [nth for nth, statement in enumerate(function.body) if statement.text.startswith(PARAMETER_LOAD)]
    return function.inferred({}, value_of, operator.or_, origins)


def _readers(function: Function, values: _Values) -> list[int]:
    """Return the positions of the statements that mention a register of `values`: few of a network's million do."""
    return sorted(set().union(*(function.mentions[name] for name in values)))


def _result(statement: Statement, values: _Values, pointers: Collection[int]) -> _Value | None:
    """Return the value that a statement sets; None for one that depends on no address."""
    if statement.opcode.startswith(PARAMETER_LOAD):
        match = _PARAMETER.search(statement.text)
        position = int(match["position"]) if match else -1
        return _Value(frozenset((position,))) if position in pointers else None
    used = [values[name] for name in statement.source_registers if name in values]
    if not used:
        return None
    value, name, numbers = used[0], statement.opcode.partition(".")[0], _numbers(statement)
    for other in used[1:]:
        value |= other
    if name in MOVING and ".f" not in statement.opcode:
        is_pointer = value.is_pointer and not (name == "sub" and len(used) > 1) and not _narrows(statement.opcode)
        return _Value(value.origins, value.shift, is_pointer)
    if name in ("neg", "not", "shl"):
        return _Value(value.origins, value.shift, is_pointer=False)
    if name == "shr":
        return _Value(value.origins, min(N_BITS, value.shift + (numbers[-1] if numbers else N_BITS)), is_pointer=False)
    return value if name == "and" and _rounds_down(numbers) else None


def _is_distance(statement: Statement, values: _Values) -> bool:
    if not statement.opcode.startswith("sub."):
        return False
    used = [values[name] for name in statement.source_registers if name in values]
    origins = {value.origins for value in used}
    return len(used) == 2 and all(v.is_pointer for v in used) and len(origins) == 1 and len(next(iter(origins))) == 1


def _is_allowed(statement: Statement, used: Sequence[_Value]) -> bool:
    name, numbers = statement.opcode.partition(".")[0], _numbers(statement)
    shift = max(value.shift for value in used)
    if name == "and":
        return _rounds_down(numbers) or any(
            number >= 0 and number.bit_length() + shift <= N_ALIGNMENT_BITS for number in numbers
        )
    if name == "bfe":
        return len(numbers) == 2 and sum(numbers) + shift <= N_ALIGNMENT_BITS
    if name in ("setp", "set"):
        are_pointers = len(used) == len(statement.source_registers) and all(value.is_pointer for value in used)
        return are_pointers and not any(numbers)
    if name in MOVING | {"neg", "not", "shl", "shr"}:
        return ".f" not in statement.opcode
    return name in HARMLESS or statement.opcode.startswith((*HARMLESS_STORES, "."))


def _rounds_down(numbers: Sequence[int]) -> bool:
    return any(-MAX_CLEARED <= number < 0 for number in numbers)


def _narrows(opcode: str) -> bool:
    return opcode.startswith("cvt.") and not opcode.split(".")[-2].endswith("64")


def _numbers(statement: Statement) -> list[int]:
    """Return the immediate operands, as signed numbers of the opcode's width."""
    operands = (operand.strip() for operand in statement.sources.split(","))
    bits = N_BITS if "64" in statement.opcode else N_BITS // 2
    numbers = [int(operand.rstrip("U"), 0) for operand in operands if _NUMBER.fullmatch(operand)]
    return [number - (1 << bits) if number >= 1 << (bits - 1) else number for number in numbers]
