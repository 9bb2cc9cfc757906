"""What a GPU leaves open: a kernel must be right however it comes out.

A run on the executor has all of it one way. Where a tensor lies is such a thing: operators are given whatever PyTorch's
allocators have, and each case has its tensors elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.ptx.run.layout import (
    MAX_PLACE,
    N_MULTIPROCESSORS,
    N_WARP_SLOTS,
    SHARED_POISON,
    SHARED_UNIT_BYTES,
    Interruptions,
)
from kernel_lsp.verify.model.cases import PAGE_BYTES, Case

MAX_PAGES = MAX_PLACE // PAGE_BYTES
ALLOCATION_BYTES = 512
"""PyTorch allocates multiples of it (`kMinBlockSize` of c10's CUDACachingAllocator): the alignment of a new tensor."""

SHARED_ALIGNMENT_BYTES = 1024
"""The strictest alignment that kernels ask of shared memory (of tiles that are swizzled by 128 bytes)."""
N_STARTS = 8
"""Places of shared memory. All are far below what 18 bits of an address hold, as descriptors of matrices have them."""


@dataclass(frozen=True)
class Circumstances:
    """Those of one run. `pages` says by tensor how far it lies from the middle of its part of the address space; a case
    has places of its own for others. `resident_blocks` says of some kernels how many blocks run at once. The rest is as
    in `RunOptions`."""

    shared_poison: int = SHARED_POISON
    shared_unit: int = SHARED_UNIT_BYTES
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    n_multiprocessors: int = N_MULTIPROCESSORS
    n_warp_slots: int = N_WARP_SLOTS
    keeps_lanes_apart: bool = False
    interruptions: Interruptions = "none"
    pages: Mapping[str, int] = field(default_factory=dict)

    def offset_of(self, case: Case, tensor: BoundTensor) -> int:
        """How far from the middle of its part of the address space the executor puts a tensor, in bytes."""
        pages = self.pages[tensor.name] if tensor.name in self.pages else _pages_of(case, tensor.name)
        return pages * PAGE_BYTES + _offset_in_page(case, tensor)


USUAL = Circumstances()


def shared_start_of(case: Case) -> int:
    """The address of shared memory in a case: 1024 on GPUs of today, 0 on older ones, and never a promise."""
    return SHARED_ALIGNMENT_BYTES * random.Random(f"shared memory of {case.seed} {case.family}").randrange(N_STARTS)


# --- below


def _pages_of(case: Case, tensor: str) -> int:
    return random.Random(f"pages of {case.seed} {case.family} {tensor}").randrange(-MAX_PAGES, MAX_PAGES)


def _offset_in_page(case: Case, tensor: BoundTensor) -> int:
    """Results and scratch are new; an input may be a part of another tensor."""
    if tensor.role == "input":
        return case.offset_of(tensor.name)
    key = f"offset of {case.seed} {case.family} {tensor.name}"
    return ALLOCATION_BYTES * random.Random(key).randrange(PAGE_BYTES // ALLOCATION_BYTES)
