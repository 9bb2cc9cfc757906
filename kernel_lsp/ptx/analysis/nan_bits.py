"""Find where the bit pattern of a NaN is observable.

A GPU's f32 arithmetic produces a single pattern, 0x7fffffff (PTX ISA 9.0, section on floating point). Loads and moves
preserve the pattern. A CPU propagates an operand's pattern through arithmetic. The difference matters only to code that
reads the bits, e.g. an integer conversion to bf16.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.ptx.text.flow import Block, defined, used
from kernel_lsp.ptx.text.syntax import Instruction

_FLOATING = ("f32", "f32x2", "f16", "f16x2", "bf16", "bf16x2", "f64", "tf32")
_COPIES = frozenset(("mov", "selp", "slct", "neg", "abs", "copysign"))
"""Opcodes that preserve an operand's bits except for the sign."""


def registers_read_as_bits(blocks: Iterable[Block]) -> frozenset[str]:
    """Return the registers whose bits are read, directly or through copies, outside of floating-point arithmetic."""
    found: set[str] = set()
    copies: list[Instruction] = []
    for instruction in (one for block in blocks for one in block.instructions):
        if not instruction.has(*_FLOATING):
            found.update(used(instruction))
        elif instruction.opcode in _COPIES:
            copies.append(instruction)
    n_before = -1
    while len(found) > n_before:
        n_before = len(found)
        for copy in reversed(copies):
            if not found.isdisjoint(defined(copy)):
                found.update(used(copy))
    return frozenset(found)
