"""Run small cases in other environments, for kernels that read their environment: another number of multiprocessors,
diverged warps, other units of shared memory, tensors at other addresses.

A kernel may schedule by any of it, but its results must stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.gpu.specs import GPUS
from kernel_lsp.ptx.run.layout import N_MULTIPROCESSORS, N_WARP_SLOTS, WARP_SIZE
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.cpu.address_layouts import addresses_in, pointed_places
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.environment import Circumstances
from kernel_lsp.verify.model.progress import Plan

SIZE_REGISTER, OTHER_UNIT_BYTES = "%total_smem_size", 256
"""Allocation unit of shared memory before sm_80, in bytes (PTX ISA 9.0, on this register)."""
PLACE_REGISTERS = frozenset(("%nsmid", "%smid", "%nwarpid"))
TALKING = frozenset(("volatile", "relaxed", "acquire", "release", "mmio"))
"""Modifiers of loads and stores by which threads may communicate."""
CHANGING = frozenset(("atom", "red", "st"))
FEWEST, MOST = 1, 400
"""Multiprocessors, below and above those of any GPU."""
MAX_COMPARED = 1024
"""Largest compared number that is tried as a number of multiprocessors."""
MAX_NUMBERS = 8
_INTEGER = re.compile(r"(?<![\w.%])\d+\b")


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
        yield from (Other(case, bound, one, words) for one, words in _machines(built))
        if SIZE_REGISTER in built.ptx:
            words = f"where shared memory is given out in units of {OTHER_UNIT_BYTES} bytes ({SIZE_REGISTER})"
            yield Other(case, bound, Circumstances(shared_unit=OTHER_UNIT_BYTES), words)
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


# --- below


def _machines(built: Built) -> Iterator[tuple[Circumstances, str]]:
    """Yield the known numbers of multiprocessors, two that no GPU has, and those that the code compares with. Empty for
    a kernel that does not read them."""
    statements = read_ptx(built.ptx, "").statements
    asking = {one.function for one in statements if not PLACE_REGISTERS.isdisjoint(one.names)}
    if not asking:
        return
    compared = [
        int(number)
        for one in statements
        if one.function in asking and one.opcode.startswith(("setp.", "min.", "max."))
        for number in _INTEGER.findall(one.sources)
    ]
    near = sorted({n for number in compared for n in (number - 1, number, number + 1) if 1 < n <= MAX_COMPARED})
    machines = [(FEWEST, N_WARP_SLOTS), (MOST, N_WARP_SLOTS)]
    machines += [(gpu.n_sms, gpu.architecture.max_threads_per_sm // WARP_SIZE) for gpu in GPUS]
    machines += [(number, N_WARP_SLOTS) for number in near[: 3 * MAX_NUMBERS]]
    for n_multiprocessors, n_warp_slots in dict.fromkeys(machines):
        if (n_multiprocessors, n_warp_slots) != (N_MULTIPROCESSORS, N_WARP_SLOTS):
            words = f"on a GPU with {n_multiprocessors} multiprocessors (%nsmid), each for {n_warp_slots} warps"
            yield Circumstances(n_multiprocessors=n_multiprocessors, n_warp_slots=n_warp_slots), words
