"""One access of a simulated block's threads to memory, and when two of them are the same or never both happen."""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from kernel_lsp.rules.cuda.simulation.values import ELECTED, WARP, Number, lanes


@dataclass(eq=False, slots=True)
class Access:
    """One access by all threads that execute it. `sites` are the calls that lead to it, and itself."""

    kind: str
    sites: tuple[Node, ...]
    address: Number
    mask: list[bool] | None
    member: str
    origins: int
    path: tuple[tuple[str, int], ...]
    warp_epoch: int
    width: int
    varies: bool
    rounds: dict[int, int]
    """The iteration of each loop around the access."""
    owners: dict[int, int] | None = field(default=None)

    def threads(self, n_threads: int) -> set[int]:
        """Return the threads that make the access."""
        return {thread for thread, is_active in enumerate(self.mask or [True] * n_threads) if is_active}

    def owner_of(self, n_threads: int) -> dict[int, int]:
        """Return the last thread that accesses each address."""
        if self.owners is None:
            numbers = lanes(self.address, n_threads)
            if self.mask is None:
                self.owners = {address: thread for thread, address in enumerate(numbers)}
            else:
                pairs = enumerate(zip(numbers, self.mask, strict=True))
                self.owners = {address: thread for thread, (address, is_active) in pairs if is_active}
        return self.owners


def is_same(old: Access, new: Access) -> bool:
    """Return whether a later access adds nothing to what an earlier one is compared with."""
    return (
        old.sites == new.sites
        and old.kind == new.kind
        and old.warp_epoch == new.warp_epoch
        and old.address == new.address
        and old.mask == new.mask
    )


def conflicts(old: Access, new: Access, n_threads: int) -> bool:
    """Return whether two threads access one element, one of them writes, and nothing orders them."""
    are_members = old.member != new.member and old.member and new.member
    are_alike = old.kind == new.kind == "write" or are_members
    if are_alike or (old.origins | new.origins) & ELECTED or _excludes(old.path, new.path):
        return False
    if old.address is None or new.address is None:
        return _may_meet(old, new, n_threads)
    if old.width != new.width:
        return False
    if not isinstance(old.address, list) and not isinstance(new.address, list):
        return old.address == new.address and _is_of_two(old, new, n_threads)
    owners, is_ordered = old.owner_of(n_threads), old.warp_epoch != new.warp_epoch
    pairs = enumerate(zip(lanes(new.address, n_threads), new.mask or [True] * n_threads, strict=True))
    others = ((owners.get(address, thread), thread) for thread, (address, is_active) in pairs if is_active)
    return any(owner != thread and not (is_ordered and owner // WARP == thread // WARP) for owner, thread in others)


def _may_meet(old: Access, new: Access, n_threads: int) -> bool:
    """Return whether an access to an element that is unknown may be to that of another thread."""
    other = new if old.address is None else old
    is_ordered = old.warp_epoch != new.warp_epoch and _is_of_one_warp(old, new, n_threads)
    return not is_ordered and isinstance(other.address, list) and old.sites != new.sites


def _is_of_one_warp(old: Access, new: Access, n_threads: int) -> bool:
    """Return whether threads of one warp alone make both accesses, which a barrier of the warp or a tile orders."""
    return len({thread // WARP for thread in old.threads(n_threads) | new.threads(n_threads)}) < 2


def _is_of_two(old: Access, new: Access, n_threads: int) -> bool:
    """Return whether one element is accessed by different threads: one may write it, and others read it."""
    first, second = old.threads(n_threads), new.threads(n_threads)
    if old.kind == "write" and len(first) > 1 and not old.varies:
        return False
    if new.kind == "write" and len(second) > 1 and not new.varies and old.kind == "read":
        return False
    others = (first | second) if first != second or len(first) > 1 else set()
    if old.warp_epoch != new.warp_epoch and len({thread // WARP for thread in others}) < 2:
        return False
    return bool(others) and (first != second or len(first) > 1)


def _excludes(one: tuple[tuple[str, int], ...], two: tuple[tuple[str, int], ...]) -> bool:
    """Return whether no launch takes both paths."""
    known = dict(one)
    return any(known.get(condition, taken) != taken for condition, taken in two)
