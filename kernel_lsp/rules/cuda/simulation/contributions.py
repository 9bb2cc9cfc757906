"""Follow which threads' data each value of a simulated block contains, and find reductions that leave some out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tree_sitter import Node

from kernel_lsp.rules.cuda.kernel_texts import assigned
from kernel_lsp.rules.cuda.simulation.values import WARP, Memory, Place, Value, lanes

MIN_LOST = 12
"""The fraction of threads, one in so many, that a reduction must leave out to be reported. A scan or a stencil in one
direction has fewer that no other thread reads."""
_HALVES = re.compile(r">>=\s*1|/=\s*2")
_HALF = re.compile(r"=\s*(\w+)\s*(?:>>\s*1|/\s*2)")

_REDUCING_CALLS = ("__reduce", "cg::reduce", "cooperative_groups::reduce")


def may_reduce(text: str) -> bool:
    """Return whether a text may combine values of several threads by halves."""
    if "shfl" in text or "reduce" in text or ((">>=" in text or "/=" in text) and _HALVES.search(text)):
        return True
    return any(name.endswith(found[1]) for name, found in assigned(_HALF, text))


Kind = Literal["shuffle", "elements", "one"]
_KINDS: tuple[Kind, ...] = ("shuffle", "elements", "one")


@dataclass(slots=True)
class Exchange:
    """A place where threads read values of others: a shuffle, an element for each thread, or one element for all."""

    site: Node
    kind: Kind


@dataclass(eq=False)
class Contributions:
    """The threads, one bit each, whose data is in the elements of arrays and in the results that a kernel stores."""

    n_threads: int
    knows_block: bool = True
    elements: dict[int, dict[int, int]] = field(default_factory=dict)
    own: dict[int, list[int]] = field(default_factory=dict)
    """Contributions to the elements of a local array, per thread."""
    exchanges: list[Exchange] = field(default_factory=list)
    given: int = 0
    """Threads that gave their data to others."""
    elected: int = 0
    """Threads whose data is in results that only some threads store."""
    is_elected: bool = False
    lost_by_all: int = 0
    """Threads whose data is missing in a result that all threads use."""
    n_exchanges: int = 0
    is_followed: bool = True
    """False once an array is accessed where the simulation does not know, or a loop with exchanges was cut short."""

    @property
    def everyone(self) -> list[int]:
        return [(1 << self.n_threads) - 1] * self.n_threads

    def loaded(self, place: Place, mask: list[bool], site: Node) -> list[int] | None:
        """Return the contributions of an element that each thread loads."""
        memory, address = place.memory, place.address
        if memory.kind == "local":
            return self.own.get(id(memory))
        if memory.kind != "shared":
            is_own = address.differs and memory.kind == "global"
            return [is_active << thread for thread, is_active in enumerate(mask)] if is_own else None
        if address.number is None or address.origins:
            self.is_followed = False
            return None
        elements = self.elements.get(id(memory))
        if elements is None:
            return None
        found = [elements.get(each, 0) for each in lanes(address.number, self.n_threads)]
        if any(is_active and each & ~(1 << t) for t, (each, is_active) in enumerate(zip(found, mask, strict=True))):
            self._exchange(site, "elements" if isinstance(address.number, list) else "one")
        return found

    def stored(self, place: Place, value: Value | None, mask: list[bool], is_sure: bool, is_atomic: bool) -> None:
        """Note what the active threads store."""
        memory, address = place.memory, place.address
        parts = None if value is None else value.parts
        if memory.kind == "local":
            if parts is not None:
                before = self.own.get(id(memory), [0] * self.n_threads)
                self.own[id(memory)] = [a | b for a, b in zip(before, parts, strict=True)]
        elif memory.kind == "global":
            if parts is not None and self.is_followed and self.exchanges:
                self._result(parts, mask)
        elif address.number is None or address.origins:
            self.is_followed = self.is_followed and parts is None and id(memory) not in self.elements
        else:
            self._stored_in(memory, lanes(address.number, self.n_threads), parts, mask, is_sure and not is_atomic)

    def _stored_in(
        self, memory: Memory, addresses: list[int], parts: list[int] | None, mask: list[bool], is_replaced: bool
    ) -> None:
        elements = self.elements.setdefault(id(memory), {})
        new: dict[int, int] = {}
        for address, each, is_active in zip(addresses, parts or [0] * self.n_threads, mask, strict=True):
            if is_active:
                self.given |= each
                is_first = address not in new
                new[address] = each if is_first and is_replaced else each | new.get(address, elements.get(address, 0))
        elements |= new

    def shuffled(self, name: str, values: list[Value], mask: list[bool], site: Node) -> list[int] | None:
        """Return the contributions of what each thread receives in a shuffle."""
        parts = next((each.parts for each in values if each.parts is not None), None)
        if parts is None:
            return None
        given = [each if is_active else 0 for each, is_active in zip(parts, mask, strict=True)]
        for each in given:
            self.given |= each
        self._exchange(site, "shuffle")
        numbers = [each.number for each in values[1:]]
        width = numbers[2] if len(numbers) > 2 else WARP
        step = next((kind for kind in ("down", "xor", "up") if kind in name), "")
        if "__shfl" not in name or len(numbers) < 2 or not isinstance(width, int) or width < 1:
            return self._of_warps(given) if name.startswith(_REDUCING_CALLS) else self.everyone
        if numbers[1] is None:
            return self.everyone
        distances = enumerate(lanes(numbers[1], self.n_threads))
        return [given[_source(thread, step, distance, width, self.n_threads)] for thread, distance in distances]

    def lost(self) -> Iterator[Node]:
        """Yield the exchange that leaves threads out."""
        lost = self.lost_by_all | (self.given & ~self.elected if self.is_elected else 0)
        if not self.exchanges or lost.bit_count() * MIN_LOST < self.given.bit_count() or lost.bit_count() < 2:
            return
        warps = [lost >> first & (1 << WARP) - 1 for first in range(0, self.n_threads, WARP)]
        is_of_lanes = all(each != (1 << WARP) - 1 for each in warps)
        sites = {kind: [each.site for each in self.exchanges if each.kind == kind] for kind in _KINDS}
        if is_of_lanes and sites["shuffle"]:
            yield sites["shuffle"][0]
        elif is_of_lanes or self.knows_block:
            yield (sites["elements"] or sites["one"] or sites["shuffle"])[-1]

    def _exchange(self, site: Node, kind: Kind) -> None:
        self.n_exchanges += 1
        if all(each.site.id != site.id for each in self.exchanges):
            self.exchanges.append(Exchange(site, kind))

    def _of_warps(self, parts: list[int]) -> list[int]:
        """Return the contributions of all threads of a warp to each of them."""
        found: list[int] = []
        for first in range(0, self.n_threads, WARP):
            total = 0
            for each in parts[first : first + WARP]:
                total |= each
            found += [total] * len(parts[first : first + WARP])
        return found

    def _result(self, parts: list[int], mask: list[bool]) -> None:
        """Note what a result that goes to global memory contains."""
        writers = [thread for thread, is_active in enumerate(mask) if is_active]
        if all(parts[thread] & ~(1 << thread) == 0 for thread in writers):
            return
        is_of_all = all(mask[thread] for thread in range(self.n_threads) if self.given >> thread & 1)
        if not is_of_all:
            self.is_elected = True
            for thread in writers:
                self.elected |= parts[thread]
            return
        common: dict[int, int] = {}
        for thread in writers:
            common[thread // WARP] = common.get(thread // WARP, -1) & (parts[thread] | 1 << thread)
        if all(each.bit_count() > 1 for each in common.values()):
            total = 0
            for each in common.values():
                total |= each
            self.lost_by_all |= self.given & ~total


def _source(thread: int, step: str, distance: int, width: int, n_threads: int) -> int:
    """Return the thread whose value a thread receives in a shuffle; its own where there is none."""
    first = thread - thread % width
    lane = thread - first
    other = {"down": lane + distance, "up": lane - distance, "xor": lane ^ distance}.get(step, distance % width)
    return first + other if 0 <= other < width and first + other < n_threads else thread
