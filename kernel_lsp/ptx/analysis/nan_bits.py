"""Where the bits of a NaN show: arithmetic in f32 gives one pattern, 0x7fffffff (PTX ISA 9.0, section on floating
point), and what is loaded or moved keeps its own. A CPU keeps an operand's pattern through arithmetic, which is the
same to all but code that reads the bits, such as a conversion to bf16 by integers."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.ptx.text.flow import Block, defined, used
from kernel_lsp.ptx.text.syntax import Instruction

_FLOATING = ("f32", "f32x2", "f16", "f16x2", "bf16", "bf16x2", "f64", "tf32")
_COPIES = frozenset(("mov", "selp", "slct", "neg", "abs", "copysign"))
"""What gives an operand's bits, but for the sign."""


def registers_read_as_bits(blocks: Iterable[Block]) -> frozenset[str]:
    """The registers whose bits something other than arithmetic of floats reads, by itself or through copies."""
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
