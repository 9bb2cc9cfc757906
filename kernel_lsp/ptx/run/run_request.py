"""What a run is asked to do, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernel_lsp.ptx.run.buffers import BufferRequest
from kernel_lsp.ptx.run.layout import (
    N_MULTIPROCESSORS,
    N_WARP_SLOTS,
    SHARED_POISON,
    SHARED_START,
    SHARED_UNIT_BYTES,
    Interruptions,
)

ThreadOrder = Literal["forward", "reverse", "random"]
LOCAL_POISONS = (0xFF, 0x7F, 0xFE)
"""Bytes that local memory may be full of before its first store, by the seed of a run: NaN in every floating type, a
huge number, and one far below zero. No way to combine numbers hides all of them."""


@dataclass(frozen=True)
class RunRequest:
    """One run. `sample` is (number of blocks per launch, seed), or None for all blocks; where `blocks` are named they
    are the sample. `resident_blocks` says of some kernels how many blocks run at once: another starts when one ends.
    `shared_start` is the address of shared memory, which is given out in units of `shared_unit` bytes.
    `n_multiprocessors` and `n_warp_slots` are what `%nsmid` and `%nwarpid` say; with `keeps_lanes_apart` lanes that
    have gone different ways are not together again at an `activemask`; with `keeps_written` what a kernel wrote is
    noted as it is in a sampled run; with `interruptions` threads
    give way before accesses by which they may talk, and go on in the same order or in turns from either end."""

    buffers: tuple[BufferRequest, ...]
    steps: tuple[dict[str, Any], ...]
    sample: tuple[int, int] | None = None
    blocks: tuple[int, ...] = ()
    thread_order: ThreadOrder = "forward"
    seed: int = 0
    n_traced_blocks: int = 2
    max_instructions: int = 10**10
    max_thread_instructions: int = 10**10
    max_findings: int = 20
    may_write_variables: bool = True
    watches_races: bool = False
    shared_poison: int = SHARED_POISON
    shared_start: int = SHARED_START
    shared_unit: int = SHARED_UNIT_BYTES
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    n_multiprocessors: int = N_MULTIPROCESSORS
    n_warp_slots: int = N_WARP_SLOTS
    keeps_lanes_apart: bool = False
    keeps_written: bool = False
    interruptions: Interruptions = "none"

    @property
    def local_poison(self) -> int:
        return LOCAL_POISONS[self.seed % len(LOCAL_POISONS)]


@dataclass
class LaunchResult:
    """What a launch did. `counters` has the fields of `LaunchCounters`."""

    counters: dict[str, Any]
    n_blocks_run: int
    is_out_of_budget: bool = False


@dataclass
class RunResult:
    """What a run did. `timed_out` says why it was stopped, or is empty."""

    findings: list[dict[str, object]] = field(default_factory=list)
    launches: list[LaunchResult] = field(default_factory=list)
    timed_out: str = ""


class InvalidRequestError(Exception):
    """The request does not fit the module that is loaded. A bug of the caller."""
