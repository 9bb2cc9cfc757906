"""Detect livelock: the observable state of waiting threads repeats.

A spinning thread runs the same instructions until memory changes. Once every live block has had its turns, the
registers, the memory of the blocks and the tensors are compared with an earlier state. If they are equal, all later
turns repeat as well, in this order of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.run.buffers import Region
from kernel_lsp.ptx.run.layout import N_BARRIERS, Context, Thread

MAX_BYTES = 256 << 20
"""Maximum bytes compared per check.
A check takes a few milliseconds per MiB; larger runs end at the instruction limit, which takes 15 s."""
FUEL_BYTES = range(int(Thread.FUEL), int(Thread.POLLED) + 8)
"""Fuel fields of a thread record, excluded because remaining fuel differs at every check."""


@dataclass(frozen=True)
class BlockMemory:
    """State of a waiting block: addresses in its region.
    Threads, stacks and shared memory extend from `threads` to the end."""

    region: Region
    context: int
    threads: int


@dataclass
class Stillness:
    """Record the compared states of one launch. `shared_by_all` is memory that kernels may write and every block sees.
    Thread records have `stride` bytes."""

    shared_by_all: Sequence[Region]
    n_threads: int
    stride: int
    seen: set[bytes] = field(default_factory=set)
    n_turns: int = 0

    def has_come_back(self, blocks: Sequence[BlockMemory]) -> bool:
        """Return whether the state equals an earlier one. Called once every block had a turn. Compares at turns 1, 2,
        4, 8 and so on, so that a long computation is not slowed down. Periodic states of any period are still
        detected."""
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
