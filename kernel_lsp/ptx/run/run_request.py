"""Requests and results of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernel_lsp.ptx.run.buffers import BufferRequest
from kernel_lsp.ptx.run.layout import SHARED_POISON, SHARED_START, Interruptions

ThreadOrder = Literal["forward", "reverse", "random"]
LOCAL_POISONS = (0xFF, 0x7F, 0xFE)
"""Poison bytes of local memory, by the seed of a run: NaN in every floating type, a huge number, and a very negative
one. No combination of values hides all of them."""


@dataclass(frozen=True)
class RunRequest:
    """Request one run. `sample` is (number of blocks per launch, seed), or None for all blocks; named `blocks` replace
    it. `resident_blocks` limits the co-resident blocks of some kernels: another starts when one ends. `shared_start` is
    the address of shared memory. With `keeps_lanes_apart`, diverged lanes have not reconverged at an `activemask`. With
    `keeps_written`, kernel writes are recorded as in a sampled run. With `interruptions`, threads yield before accesses
    through which they communicate, and resume in the same order or alternately from either end."""

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
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    keeps_lanes_apart: bool = False
    keeps_written: bool = False
    interruptions: Interruptions = "none"

    @property
    def local_poison(self) -> int:
        return LOCAL_POISONS[self.seed % len(LOCAL_POISONS)]


@dataclass
class LaunchResult:
    """Hold the result of a launch. `counters` has the fields of `LaunchCounters`."""

    counters: dict[str, Any]
    n_blocks_run: int
    is_out_of_budget: bool = False


@dataclass
class RunResult:
    """Hold the result of a run. `timed_out` is the reason for an early stop, or empty."""

    findings: list[dict[str, object]] = field(default_factory=list)
    launches: list[LaunchResult] = field(default_factory=list)
    timed_out: str = ""


class InvalidRequestError(Exception):
    """Report a request that does not fit the loaded module: a bug of the caller."""
