"""Def-use chains of a kernel's registers."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.ptx.text.flow import Block, defined, used
from kernel_lsp.ptx.text.syntax import Address, Immediate, Instruction, Operand, Register, Symbol

Place = tuple[Operand, int]
"""Canonical address: a register or a symbol, and an offset in bytes."""


def users_of(blocks: Sequence[Block]) -> dict[str, list[Instruction]]:
    """Map each register to the instructions that read it."""
    users: dict[str, list[Instruction]] = {}
    for block in blocks:
        for instruction in block.instructions:
            for name in used(instruction):
                users.setdefault(name, []).append(instruction)
    return users


def address_of(one: Instruction, origins: dict[str, Instruction | None]) -> Place:
    """Return the address of an access, resolved through copies and constant offsets.
    Equal results are the same address."""
    address = next(operand for operand in one.operands if isinstance(operand, Address))
    base: Operand = address.base
    offset = address.offset
    while isinstance(base, Register) and (origin := origins.get(base.name)) is not None:
        source, *rest = origin.operands[1:]
        if origin.opcode == "add" and rest and isinstance(rest[0], Immediate):
            offset += rest[0].bits
        elif origin.opcode not in ("mov", "cvta"):
            break
        base = source
    if isinstance(base, Symbol):
        return Symbol(base.name), offset + base.offset
    return base, offset


def origins_of(blocks: Sequence[Block]) -> dict[str, Instruction | None]:
    """Map each register to the instruction that defines it; None where several do."""
    origins: dict[str, Instruction | None] = {}
    for block in blocks:
        for one in block.instructions:
            for name in defined(one):
                origins[name] = None if name in origins else one
    return origins


STRONG_MODIFIERS = ("volatile", "acquire", "relaxed", "acq_rel", "release", "seq_cst", "mmio")
"""Modifiers of accesses through which threads may communicate."""
ACQUIRING_MODIFIERS = ("acquire", "acq_rel", "seq_cst")
RELEASING_MODIFIERS = ("release", "acq_rel", "seq_cst", "sc")
PAST_L1_MODIFIERS = ("cg", "cv")
"""Modifiers of loads that bypass the L1 cache."""
SHARED_MODIFIERS = ("shared", "shared__cta")
