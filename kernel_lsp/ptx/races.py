"""Races in device memory: a thread reads what another has written in the same launch, and nothing orders the two.

Threads run one after the other here, so that an addition which others would overwrite on a GPU comes out right. Who
wrote each byte is therefore noted, where a run asks for it: block, thread, and how often threads of the block had
waited for each other. Only kernels without a fence are watched: after one, what others wrote may be read, in ways that
this does not follow. `is_race` is in the subset that `kernel_lsp.ptx.native` translates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_lsp.ptx.flow import Block
from kernel_lsp.ptx.layout import Context, Entry, EntryFlag, FaultKind, Info, Thread
from kernel_lsp.ptx.native import load64, store64
from kernel_lsp.ptx.syntax import Instruction

STRONG_MODIFIERS = ("volatile", "acquire", "relaxed", "acq_rel", "release", "seq_cst", "mmio")
"""Of accesses that threads may use to talk to each other."""
RELEASING_MODIFIERS = ("release", "acq_rel", "seq_cst", "sc")
FENCES = ("membar", "fence", "mbarrier", "griddepcontrol")
EPOCH_BITS = 20
EPOCH_MASK = (1 << EPOCH_BITS) - 1
BLOCK_SHIFT = EPOCH_BITS + 11
"""A block has at most 1024 threads."""
WORD_BYTES = 4
"""Of wider accesses, one byte in so many is noted."""


def watch_flags(blocks: Sequence[Block]) -> int:
    """The flags of the buffers that a kernel may write: which races can be told in it."""
    instructions = [instruction for block in blocks for instruction in block.instructions]
    if any(map(_may_order_blocks, instructions)):
        return 0
    talk = any(one.opcode == "atom" or one.has(*STRONG_MODIFIERS) for one in instructions)
    return int(EntryFlag.WATCHED) if talk else int(EntryFlag.WATCHED | EntryFlag.WATCHED_IN_BLOCK)


def is_race(context: int, thread: int, info: int, entry: int, offset: int, n_bytes: int) -> int:
    """Note a plain store; of a load, the kind of race that it is in, or 0. Atomics are neither."""
    if (info & Info.READS) != 0 and (info & Info.WRITES) != 0:
        return 0
    writer = load64(entry + Entry.WRITERS) + 8 * offset
    step = n_bytes if n_bytes < WORD_BYTES else WORD_BYTES
    own = (load64(context + Context.BLOCK) + 1) << BLOCK_SHIFT
    own |= load64(thread + Thread.INDEX) << EPOCH_BITS
    own |= load64(context + Context.EPOCH) & EPOCH_MASK
    for _ in range(n_bytes // step):
        if (info & Info.WRITES) != 0:
            store64(writer, 0 if (info & Info.STRONG) != 0 else own)
        else:
            last = load64(writer)
            if last != 0 and (last >> BLOCK_SHIFT) != (own >> BLOCK_SHIFT):
                return FaultKind.RACE_OF_BLOCKS
            is_other = last != 0 and last != own and ((last ^ own) & EPOCH_MASK) == 0
            if is_other and (load64(entry + Entry.FLAGS) & EntryFlag.WATCHED_IN_BLOCK) != 0:
                return FaultKind.RACE_OF_THREADS
        writer = writer + 8 * step
    return 0


FUNCTIONS: tuple[Callable[..., int], ...] = (is_race,)


# --- below


def _may_order_blocks(instruction: Instruction) -> bool:
    return instruction.opcode in FENCES or instruction.has(*RELEASING_MODIFIERS, "mbarrier", "bulk")
