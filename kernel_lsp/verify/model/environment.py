"""The unspecified parts of a GPU's environment: a kernel must be correct for each of their values.

A run on the executor fixes one value for each of them. Addresses are an example: an operator receives whatever
PyTorch's allocators return, so each case places its tensors elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.ptx.run.layout import (
    MAX_PLACE,
    SHARED_POISON,
    Interruptions,
)
from kernel_lsp.verify.model.cases import PAGE_BYTES, Case

MAX_PAGES = MAX_PLACE // PAGE_BYTES
ALLOCATION_BYTES = 512
"""Alignment of a new tensor, in bytes: PyTorch allocates multiples of it (`kMinBlockSize` of c10's
CUDACachingAllocator)."""

SHARED_ALIGNMENT_BYTES = 1024
"""Strictest alignment that kernels require of shared memory, in bytes (tiles swizzled by 128 bytes)."""
N_STARTS = 8
"""Distinct start addresses of shared memory. All fit into the 18 bits of an address in matrix descriptors."""


@dataclass(frozen=True)
class Circumstances:
    """The environment of one run.

    `resident_blocks` limits the blocks of a kernel that run at once. The rest is as in
    `RunOptions`.
    """

    shared_poison: int = SHARED_POISON
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    keeps_lanes_apart: bool = False
    interruptions: Interruptions = "none"


USUAL = Circumstances()


def offset_of(case: Case, tensor: BoundTensor) -> int:
    """Return a tensor's distance from the middle of its window of the address space, in bytes."""
    key = f"pages of {case.seed} {case.family} {tensor.name}"
    return random.Random(key).randrange(-MAX_PAGES, MAX_PAGES) * PAGE_BYTES + _offset_in_page(case, tensor)


def shared_start_of(case: Case) -> int:
    """Return the address of shared memory in a case. It is 1024 on today's GPUs, 0 on older ones, and never
    guaranteed."""
    return SHARED_ALIGNMENT_BYTES * random.Random(f"shared memory of {case.seed} {case.family}").randrange(N_STARTS)


# --- below


def _offset_in_page(case: Case, tensor: BoundTensor) -> int:
    """Return 0 for results and scratch, which are fresh allocations. An input may be a view into another tensor."""
    if tensor.role == "input":
        return case.offset_of(tensor.name)
    key = f"offset of {case.seed} {case.family} {tensor.name}"
    return ALLOCATION_BYTES * random.Random(key).randrange(PAGE_BYTES // ALLOCATION_BYTES)
