"""Whether threads that wait for each other wait for ever: all that they could see is as it was at an earlier look.

A thread that spins runs the same instructions until memory changes. When every block that has not ended has had its
turns, and registers, memory of the blocks and tensors are what they were, then the turns to come are like those that
were, in this order of threads, without an end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.run.buffers import Region
from kernel_lsp.ptx.run.layout import N_BARRIERS, Context, Thread

MAX_BYTES = 16 << 20
"""Of all that is compared. A look takes a few milliseconds per MiB; larger runs end by their count of instructions."""
FUEL_BYTES = range(int(Thread.FUEL), int(Thread.FUEL_GIVEN) + 8)
"""What a thread may still run differs at every look."""


@dataclass(frozen=True)
class BlockMemory:
    """Where a block that waits keeps its state: addresses in its region. Threads, stacks and shared memory go from
    `threads` to the end."""

    region: Region
    context: int
    threads: int


@dataclass
class Stillness:
    """What was seen of one launch. `shared_by_all` is what kernels may write and every block sees; threads have records
    of `stride` bytes."""

    shared_by_all: Sequence[Region]
    n_threads: int
    stride: int
    seen: set[bytes] = field(default_factory=set)
    n_turns: int = 0

    def has_come_back(self, blocks: Sequence[BlockMemory]) -> bool:
        """Whether all of it was the same before. Asked once every block had a turn; looks at turns 1, 2, 4, 8 and so
        on, so that a long computation of blocks that could wait is not slowed down. What comes back every so many turns
        is seen all the same."""
        self.n_turns += 1
        if self.n_turns & (self.n_turns - 1):
            return False
        n_bytes = sum(region.n_bytes for region in (*self.shared_by_all, *(block.region for block in blocks)))
        if n_bytes > MAX_BYTES:
            return False
        state = hashlib.blake2b()
        for part in self._parts(blocks):
            state.update(part)
        known = state.digest() in self.seen
        self.seen.add(state.digest())
        return known

    def _parts(self, blocks: Sequence[BlockMemory]) -> Iterable[bytes | bytearray]:
        for region in self.shared_by_all:
            yield region.memory[: region.n_bytes]
        for block in blocks:
            arrived = block.context + Context.BARRIER_ARRIVED - block.region.address
            yield block.region.memory[arrived : arrived + 8 * N_BARRIERS]
            state = bytearray(block.region.memory[block.threads - block.region.address :])
            last = self.n_threads * self.stride
            for place in FUEL_BYTES:
                state[place : last : self.stride] = bytes(self.n_threads)
            yield state
