"""What kinds of instructions a kernel has: those at which threads wait, may wait, or meet others."""

from __future__ import annotations

from kernel_lsp.ptx.races.modifiers import STRONG_MODIFIERS
from kernel_lsp.ptx.text.flow import Block
from kernel_lsp.ptx.text.syntax import Instruction, Register

YIELDING_OPCODES = frozenset(["bar", "barrier", "shfl", "vote", "match", "activemask", "redux", "elect", "mbarrier"])
WORKSPACE_REGISTERS = frozenset(["%envreg1", "%envreg2"])
"""Halves of the address of what the driver keeps for a cooperative launch."""
MATRIX_OPCODES = frozenset(["mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "wgmma"])


def meets_others(instruction: Instruction) -> bool:
    """Whether others may see what it does, or do what it sees: then matrix instructions before it come first."""
    if instruction.opcode == "ld":
        return not instruction.has("global", "param", "const", "local")
    return instruction.opcode in YIELDING_OPCODES or instruction.opcode in ("st", "atom", "red", "cp")


def may_yield(block: Block) -> bool:
    return any(instruction.opcode in YIELDING_OPCODES | MATRIX_OPCODES for instruction in block.instructions)


def ended_by(block: Block) -> frozenset[str]:
    """The registers by which the end of the block is chosen."""
    deciding = (block.guard.register if block.guard else None, block.selector)
    return frozenset(register.name for register in deciding if register is not None)


def can_spin(blocks: list[Block]) -> bool:
    """Whether a loop may wait for another thread: then it must give way."""
    instructions = [instruction for block in blocks for instruction in block.instructions]
    if any(one.opcode == "mbarrier" and one.has("test_wait", "try_wait") for one in instructions):
        return True
    has_loop = any(target <= block.index for block in blocks for target in block.targets)
    return has_loop and any(
        instruction.opcode == "atom" or (instruction.opcode == "ld" and instruction.has(*STRONG_MODIFIERS))
        for block in blocks
        for instruction in block.instructions
    )


def is_talk(instruction: Instruction) -> bool:
    """Whether threads may talk to each other by the access."""
    if instruction.has("param", "const", "local"):
        return False
    if instruction.opcode in ("ld", "st"):
        return instruction.has(*STRONG_MODIFIERS)
    return instruction.opcode in ("atom", "red")


def can_be_torn(blocks: list[Block]) -> bool:
    """Whether an update may be made of several accesses, each of which no other thread sees in parts."""
    talk = [instruction for block in blocks for instruction in block.instructions if is_talk(instruction)]
    if any(one.opcode == "atom" and one.has("exch", "cas") for one in talk):
        return True
    return (
        len(talk) > 1 and any(one.opcode in ("atom", "ld") for one in talk) and any(one.opcode != "ld" for one in talk)
    )


def has_bulk_stores(blocks: list[Block]) -> bool:
    """Whether a thread may ask for copies from shared memory, and must wait before it ends."""
    return any(one.opcode == "cp" and one.has("bulk_group") for block in blocks for one in block.instructions)


def asks_who_is_active(blocks: list[Block]) -> bool:
    """Whether a thread asks which lanes of its warp are with it."""
    return any(instruction.opcode == "activemask" for block in blocks for instruction in block.instructions)


def waits_for_grid(blocks: list[Block]) -> bool:
    """Whether a loop may wait at the barrier of a cooperative launch."""
    return can_spin(blocks) and any(
        isinstance(operand, Register) and operand.name in WORKSPACE_REGISTERS
        for block in blocks
        for instruction in block.instructions
        for operand in instruction.operands
    )


def mentions_clusters(blocks: list[Block]) -> bool:
    """Whether an instruction is about clusters: then the blocks of one must run together."""
    return any(
        instruction.opcode == "getctarank"
        # Fences, copies and barriers name the cluster also where they mean the own block.
        or (instruction.opcode not in ("cp", "fence", "mbarrier") and "cluster" in instruction.text)
        for block in blocks
        for instruction in block.instructions
    )
