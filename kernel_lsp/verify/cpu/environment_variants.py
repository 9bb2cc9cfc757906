"""List the other environments of small cases, for kernels that depend on what a GPU leaves open: diverged warps and
interrupted threads. Results must stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernel_lsp.core.verdict import Built, Crashed, Mismatch
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.devices.device import CaseRun
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.environment import Circumstances

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
    for one in read_ptx(ptx, "").statements:
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
    Environment("environment", lambda ptx: "activemask" in ptx, Circumstances(keeps_lanes_apart=True), LANES_APART),
    Environment("interruptions", may_be_torn, Circumstances(interruptions="in_order"), TORN),
    Environment("interruptions", may_be_torn, Circumstances(interruptions="in_turns"), TORN),
)
"""The environments of small cases, in the order of their runs."""
