"""The unspecified parts of a GPU's environment: a kernel must be correct for each of their values.

A run on the executor fixes one value for each of them. Addresses are an example: an operator receives whatever
PyTorch's allocators return, so each case places its tensors elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import Built, Crashed, Mismatch
from kernel_lsp.ptx.run.layout import (
    MAX_PLACE,
)
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.devices.device import CaseRun
from kernel_lsp.verify.model.cases import PAGE_BYTES, Case
from kernel_lsp.verify.model.defences import is_on

MAX_PAGES = MAX_PLACE // PAGE_BYTES
ALLOCATION_BYTES = 512
"""Alignment of a new tensor, in bytes: PyTorch allocates multiples of it (`kMinBlockSize` of c10's
CUDACachingAllocator)."""

SHARED_ALIGNMENT_BYTES = 1024
"""Strictest alignment that kernels require of shared memory, in bytes (tiles swizzled by 128 bytes)."""
N_STARTS = 8
"""Distinct start addresses of shared memory. All fit into the 18 bits of an address in matrix descriptors."""
TALKING = frozenset(("volatile", "relaxed", "acquire", "release", "mmio"))
"""Modifiers of loads and stores by which threads may communicate."""
CHANGING = frozenset(("atom", "red", "st"))
LANES_APART = (
    "lanes that have taken different branches need not be together at __activemask() before they meet at a"
    " __syncwarp(), and with them apart"
)
TORN = (
    "an update that is made of several accesses loses what others do in between, however atomic each of them is: with"
    " threads interrupted before atomic and volatile accesses"
)
OTHER_POISONS = (0x7F, 0xFE, 0x00)
"""Bytes that fill shared memory in place of all ones: a huge float that is also a large integer, with and without sign;
a float far below zero; zeros."""
UNWRITTEN = "uninitialized-read"


Circumstances = Mapping[str, Any]
"""The environment of one run: fields of `RunOptions` in place of the usual ones."""
USUAL: Circumstances = {}


def offset_of(case: Case, tensor: BoundTensor) -> int:
    """Return a tensor's distance from the middle of its window of the address space, in bytes."""
    key = f"pages of {case.seed} {case.family} {tensor.name}"
    return random.Random(key).randrange(-MAX_PAGES, MAX_PAGES) * PAGE_BYTES + _offset_in_page(case, tensor)


def shared_start_of(case: Case) -> int:
    """Return the address of shared memory in a case. It is 1024 on today's GPUs, 0 on older ones, and never
    guaranteed."""
    return SHARED_ALIGNMENT_BYTES * random.Random(f"shared memory of {case.seed} {case.family}").randrange(N_STARTS)


def _offset_in_page(case: Case, tensor: BoundTensor) -> int:
    """Return 0 for results and scratch, which are fresh allocations. An input may be a view into another tensor."""
    if tensor.role == "input":
        return case.offset_of(tensor.name)
    key = f"offset of {case.seed} {case.family} {tensor.name}"
    return ALLOCATION_BYTES * random.Random(key).randrange(PAGE_BYTES // ALLOCATION_BYTES)


@dataclass(frozen=True)
class Environment:
    """One environment of a run, for kernels whose PTX depends on it. `words` describe it in front of a failure."""

    defence: str
    depends: Callable[[str], bool]
    circumstances: Circumstances
    words: str


def environments_of(built: Built) -> list[Environment]:
    """Return the environments that the kernels' code depends on. Empty for most kernels."""
    return [row for row in ENVIRONMENTS if is_on(row.defence) and row.depends(built.ptx)]


def may_be_torn(ptx: str) -> bool:
    """Check whether some kernel has atomics or volatile accesses that may carry a value between threads."""
    by_function: dict[str, set[str]] = {}
    for one in read_ptx(ptx).statements:
        kind, *modifiers = one.opcode.split(".")
        is_talk = kind in ("atom", "red") or (kind in ("ld", "st") and not TALKING.isdisjoint(modifiers))
        if is_talk:
            by_function.setdefault(one.function, set()).update((kind, *modifiers))
    return any(not found.isdisjoint(("atom", "ld")) and found & CHANGING for found in by_function.values())


def reads_unwritten(run: CaseRun) -> bool:
    """Check whether a kernel read uninitialised shared memory. That is no error by itself: compilers load early and
    discard. But the poison may be just what a kernel ignores: a floating maximum drops NaN, and a minimum drops all
    ones."""
    return any(finding.code == UNWRITTEN for finding in run.findings)


def because_of_shared(outcome: Mismatch | Crashed, first: CaseRun) -> Mismatch | Crashed:
    """Attribute the failure of a case to the other bytes in shared memory; `first` was correct."""
    line = next(finding.line for finding in first.findings if finding.code == UNWRITTEN)
    place = f" at line {line}" if line is not None else ""
    message = f"it reads shared memory that nothing has written{place}, and the result depends on it: {outcome.message}"
    return outcome.model_copy(update={"message": message})


ENVIRONMENTS = (
    Environment("environment", lambda ptx: "activemask" in ptx, {"keeps_lanes_apart": True}, LANES_APART),
    Environment("interruptions", may_be_torn, {"interruptions": "in_order"}, TORN),
    Environment("interruptions", may_be_torn, {"interruptions": "in_turns"}, TORN),
)
"""The environments of small cases, in the order of their runs."""
