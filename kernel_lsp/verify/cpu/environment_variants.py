"""Run small cases in other environments, for kernels that depend on what a GPU leaves open: diverged warps, interrupted
threads, tensors at other addresses. Results must stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.cpu.address_layouts import addresses_in, pointed_places
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.environment import Circumstances
from kernel_lsp.verify.model.progress import Plan

TALKING = frozenset(("volatile", "relaxed", "acquire", "release", "mmio"))
"""Modifiers of loads and stores by which threads may communicate."""
CHANGING = frozenset(("atom", "red", "st"))


@dataclass(frozen=True)
class Other:
    """A case in another environment, with the difference in words."""

    case: Case
    bound: BoundOperation
    circumstances: Circumstances
    words: str


def other_circumstances(built: Built, cases: Plan) -> Iterator[Other]:
    """Yield the variants that the kernels' code depends on, for each case; other addresses for the first case alone.
    Empty for most kernels."""
    for case, bound in cases:
        if "activemask" in built.ptx:
            words = (
                "lanes that have taken different branches need not be together at __activemask() before they meet at a"
                " __syncwarp(), and with them apart"
            )
            yield Other(case, bound, Circumstances(keeps_lanes_apart=True), words)
        if is_on("interruptions") and may_be_torn(built.ptx):
            words = (
                "an update that is made of several accesses loses what others do in between, however atomic each of"
                " them is: with threads interrupted before atomic and volatile accesses"
            )
            yield Other(case, bound, Circumstances(interruptions="in_order"), words)
            yield Other(case, bound, Circumstances(interruptions="in_turns"), words)
    for case, bound in cases[:1]:
        for places in pointed_places(built, case, bound):
            addresses = addresses_in(case, bound, places)
            where = ", ".join(f"'{name}' at {address:#x}" for name, address in addresses.items())
            words = f"the kernel computes with addresses, and a result depends on them: with {where}"
            yield Other(case, bound, Circumstances(pages=places), words)


def may_be_torn(ptx: str) -> bool:
    """Check whether some kernel has atomics or volatile accesses that may carry a value between threads."""
    by_function: dict[str, set[str]] = {}
    for one in read_ptx(ptx, "").statements:
        kind, *modifiers = one.opcode.split(".")
        is_talk = kind in ("atom", "red") or (kind in ("ld", "st") and not TALKING.isdisjoint(modifiers))
        if is_talk:
            by_function.setdefault(one.function, set()).update((kind, *modifiers))
    return any(not found.isdisjoint(("atom", "ld")) and found & CHANGING for found in by_function.values())
