"""Detect in a kernel's PTX whether a tensor's address influences values.

Only a tensor's alignment and a null pointer may decide a result. Every kernel adds to addresses, passes them on,
compares them with each other and loads from them: those uses are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from kernel_lsp.core.plan import BoundLaunch, TensorArgument
from kernel_lsp.toolchain.integrity.ptx_text import Statement, mentioned
from kernel_lsp.verify.code_facts.launch_uniform import PARAMETER

ALIGNMENT_MASK = 127
"""Bits of an address's alignment, which other cases vary."""
PAGE_MASK = 4095
"""Low bits that may be cleared without leaving the neighbourhood of an address."""
MOVING = frozenset(("mov", "cvta", "cvt", "add", "sub", "mad", "selp"))
"""Opcodes whose result is an address when an operand is one."""
HARMLESS = frozenset(("isspacep", "prefetch", "prefetchu", "ld", "ldu"))
_IN_MEMORY = re.compile(r"\[[^\]]*\]")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
N_BITS = 64


def asks_for_an_address(statements: Iterable[Statement], symbol: str, launch: BoundLaunch) -> bool:
    """Check whether the kernel uses the address of a tensor argument as a value."""
    own = [statement for statement in statements if statement.function == symbol]
    addresses = _addresses(own, launch)
    return any(_asks(statement, addresses) for statement in own)


# --- below


def _addresses(statements: Sequence[Statement], launch: BoundLaunch) -> set[str]:
    """Return the registers that hold an address, by a fixed point over the code."""
    found = {register for statement in statements for register in _given(statement, launch)}
    n_before = -1
    while len(found) > n_before:
        n_before = len(found)
        for statement in statements:
            if _moves(statement) and not found.isdisjoint(_values(statement)):
                found.update(statement.results)
    return found


def _given(statement: Statement, launch: BoundLaunch) -> Iterator[str]:
    """Yield the registers that receive a tensor's address from the launch."""
    match = PARAMETER.search(statement.text) if statement.opcode.startswith("ld.param.") else None
    passed = launch.arguments[int(match["position"]) :][:1] if match else ()
    if any(isinstance(argument, TensorArgument) for argument in passed):
        yield from statement.results


def _moves(statement: Statement) -> bool:
    name = statement.opcode.partition(".")[0]
    if name in ("and", "or"):
        return _changes_only_low_bits(statement) or (name == "or" and len(_values(statement)) > 1)
    return name in MOVING and ".f" not in statement.opcode


def _asks(statement: Statement, addresses: set[str]) -> bool:
    """Check whether the statement derives a value other than an address from an address."""
    values = _values(statement)
    if addresses.isdisjoint(values) or _moves(statement):
        return False
    name = statement.opcode.partition(".")[0]
    if name == "and":
        return not any(0 <= number <= ALIGNMENT_MASK for number in _numbers(statement))
    if name in ("setp", "set"):
        return not addresses.issuperset(values) or any(_numbers(statement))
    return name not in HARMLESS


def _changes_only_low_bits(statement: Statement) -> bool:
    """Accept ``p & ~15`` and ``p | 4``, which stay near the address. (`p | q` occurs in `((p | q) & 15) == 0`.)"""
    if statement.opcode.startswith("or"):
        return any(0 <= number <= PAGE_MASK for number in _numbers(statement))
    return any(-PAGE_MASK - 1 <= number < 0 for number in _numbers(statement))


def _values(statement: Statement) -> list[str]:
    """Return the source registers, except those that address memory."""
    return [name for name in mentioned(_IN_MEMORY.sub("", statement.sources)) if name.startswith("%")]


def _numbers(statement: Statement) -> list[int]:
    """Return the immediate operands, as signed numbers of the opcode's width."""
    operands = (operand.strip() for operand in statement.sources.split(","))
    bits = N_BITS if "64" in statement.opcode else N_BITS // 2
    numbers = [int(operand.rstrip("U"), 0) for operand in operands if _NUMBER.fullmatch(operand)]
    return [number - (1 << bits) if number >= 1 << (bits - 1) else number for number in numbers]
