"""Where the values of a kernel's registers come from, and where they go."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.ptx.text.flow import Block, defined, used
from kernel_lsp.ptx.text.syntax import Address, Immediate, Instruction, Operand, Register, Symbol

Place = tuple[Operand, int]
"""What an address is made of: a register or a symbol, and bytes beyond it."""


def users_of(blocks: Sequence[Block]) -> dict[str, list[Instruction]]:
    """The instructions that read each register."""
    users: dict[str, list[Instruction]] = {}
    for block in blocks:
        for instruction in block.instructions:
            for name in used(instruction):
                users.setdefault(name, []).append(instruction)
    return users


def address_of(one: Instruction, origins: dict[str, Instruction | None]) -> Place:
    """What an access addresses, as far back as it is copied or moved by a constant: two that are equal are the same."""
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
    """The instruction that makes each register; None where several do."""
    origins: dict[str, Instruction | None] = {}
    for block in blocks:
        for one in block.instructions:
            for name in defined(one):
                origins[name] = None if name in origins else one
    return origins
