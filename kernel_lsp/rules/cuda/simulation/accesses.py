"""One access of a simulated block's threads to memory, and when two of them are the same or never both happen."""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from kernel_lsp.rules.cuda.simulation.values import Number, lanes


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


def excludes(one: tuple[tuple[str, int], ...], two: tuple[tuple[str, int], ...]) -> bool:
    """Return whether no launch takes both paths."""
    known = dict(one)
    return any(known.get(condition, taken) != taken for condition, taken in two)
