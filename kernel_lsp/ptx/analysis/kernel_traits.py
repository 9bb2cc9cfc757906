"""Classify the instructions of a kernel: those at which threads wait, may wait, or communicate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.ptx.text.flow import STRONG_MODIFIERS, Block, Loop, loops_of
from kernel_lsp.ptx.text.syntax import Instruction, Register

YIELDING_OPCODES = frozenset(["bar", "barrier", "shfl", "vote", "match", "activemask", "redux", "elect", "mbarrier"])
WORKSPACE_REGISTERS = frozenset(["%envreg1", "%envreg2"])
"""Halves of the address of the driver's workspace for a cooperative launch."""
_WORKING_OPCODES = frozenset(["st", "atom", "red", "cp", "bar", "barrier", "shfl", "vote", "redux"])
"""Opcodes that a loop has whose iterations do more than wait."""
MATRIX_OPCODES = frozenset(["mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "wgmma"])
_FLOATING = ("f32", "f32x2", "f16", "f16x2", "bf16", "bf16x2", "f64", "tf32")
_COPIES = frozenset(("mov", "selp", "slct", "neg", "abs", "copysign"))
"""Opcodes that preserve an operand's bits except for the sign."""


def meets_others(instruction: Instruction) -> bool:
    """Check whether other threads may observe or influence the instruction.
    Pending matrix instructions must complete before it."""
    if instruction.opcode == "ld":
        return not instruction.has("global", "param", "const", "local")
    return instruction.opcode in YIELDING_OPCODES or instruction.opcode in ("st", "atom", "red", "cp")


def may_yield(block: Block) -> bool:
    return any(instruction.opcode in YIELDING_OPCODES | MATRIX_OPCODES for instruction in block.instructions)


def ended_by(block: Block) -> frozenset[str]:
    """Return the registers that select the successor of the block."""
    deciding = (block.guard.register if block.guard else None, block.selector)
    return frozenset(register.name for register in deciding if register is not None)


def can_spin(blocks: list[Block]) -> bool:
    """Check whether a loop may wait for another thread. Such a loop must yield."""
    instructions = [instruction for block in blocks for instruction in block.instructions]
    if any(one.opcode == "mbarrier" and one.has("test_wait", "try_wait") for one in instructions):
        return True
    has_loop = any(target <= block.index for block in blocks for target in block.targets)
    return has_loop and any(
        instruction.opcode == "atom" or (instruction.opcode == "ld" and instruction.has(*STRONG_MODIFIERS))
        for block in blocks
        for instruction in block.instructions
    )


def polling_blocks(blocks: Sequence[Block]) -> frozenset[int]:
    """Return the blocks of loops that only read until another thread writes. How often they run depends on the order of
    threads, so their executions are no work of the kernel."""
    return frozenset(block.index for loop in loops_of(blocks) if _only_polls(loop) for block in loop.blocks)


def _only_polls(loop: Loop) -> bool:
    instructions = list(loop.instructions())
    reads = [one for one in instructions if one.opcode == "ld" and not one.has("param", "const", "local")]
    asks = [one for one in instructions if one.opcode == "mbarrier" and one.has("test_wait", "try_wait")]
    return (
        bool(reads or asks)
        and all(one.has(*STRONG_MODIFIERS) for one in reads)
        and not any(one.opcode in _WORKING_OPCODES or one.types()[:1] in (("f32",), ("f64",)) for one in instructions)
    )


def is_talk(instruction: Instruction) -> bool:
    """Check whether threads may communicate through the access."""
    if instruction.has("param", "const", "local"):
        return False
    if instruction.opcode in ("ld", "st"):
        return instruction.has(*STRONG_MODIFIERS)
    return instruction.opcode in ("atom", "red")


def can_be_torn(blocks: list[Block]) -> bool:
    """Check whether a sequence of accesses may form one update, whose intermediate states no other thread sees."""
    talk = [instruction for block in blocks for instruction in block.instructions if is_talk(instruction)]
    if any(one.opcode == "atom" and one.has("exch", "cas") for one in talk):
        return True
    return (
        len(talk) > 1 and any(one.opcode in ("atom", "ld") for one in talk) and any(one.opcode != "ld" for one in talk)
    )


def has_bulk_stores(blocks: list[Block]) -> bool:
    """Check whether a thread may start bulk copies from shared memory, which it must wait for before it exits."""
    return any(one.opcode == "cp" and one.has("bulk_group") for block in blocks for one in block.instructions)


def asks_who_is_active(blocks: list[Block]) -> bool:
    """Check whether a thread queries the active lanes of its warp."""
    return any(instruction.opcode == "activemask" for block in blocks for instruction in block.instructions)


def waits_for_grid(blocks: list[Block]) -> bool:
    """Check whether a loop may wait at the grid barrier of a cooperative launch."""
    return can_spin(blocks) and any(
        isinstance(operand, Register) and operand.name in WORKSPACE_REGISTERS
        for block in blocks
        for instruction in block.instructions
        for operand in instruction.operands
    )


def mentions_clusters(blocks: list[Block]) -> bool:
    """Check whether an instruction concerns clusters. The blocks of a cluster must then be co-resident."""
    return any(
        instruction.opcode == "getctarank"
        # Fences, copies and barriers have the modifier `cluster` even where they refer to their own block.
        or (instruction.opcode not in ("cp", "fence", "mbarrier") and "cluster" in instruction.text)
        for block in blocks
        for instruction in block.instructions
    )


def registers_read_as_bits(blocks: Iterable[Block]) -> frozenset[str]:
    """Return the registers whose bits are read, directly or through copies, outside of floating-point arithmetic."""
    found: set[str] = set()
    copies: list[Instruction] = []
    for instruction in (one for block in blocks for one in block.instructions):
        if not instruction.has(*_FLOATING):
            found.update(instruction.used)
        elif instruction.opcode in _COPIES:
            copies.append(instruction)
    n_before = -1
    while len(found) > n_before:
        n_before = len(found)
        for copy in reversed(copies):
            if not found.isdisjoint(copy.defined):
                found.update(copy.used)
    return frozenset(found)
