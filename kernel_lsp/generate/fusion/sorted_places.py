"""Grow the group of sorted rows: the places of their first elements, and the results that read a place of their own."""

from __future__ import annotations

from kernel_lsp.generate.fusion.fusion_state import NotReadyError, Progress
from kernel_lsp.generate.fusion.groups import SortedGroup, Store
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product
from kernel_lsp.generate.ir.scalar import Argument, Scalar, accesses, cast, rewrite
from kernel_lsp.generate.ir.sizes import unravel_safe
from kernel_lsp.generate.ir.tensor import Pointwise, Routine, Tensor


def grow_sorted(progress: Progress, seed: Tensor, routine: Routine) -> tuple[SortedGroup, list[Tensor]]:
    """Return the group of the places `seed` with every pending root that reads the place of its own element alone, and
    the roots that it computes."""
    row = progress.variable("row", product(seed.shape[:-1]))
    rank = progress.variable("rank", seed.shape[-1])
    first = ZERO if rank.extent == ONE else as_index(rank)
    own = (*unravel_safe(as_index(row), seed.shape[:-1]), first)
    place = Argument("place", seed.dtype, frozenset((row, rank)))
    stores, roots = [Store(seed, own, place)], [seed]
    for tensor in list(progress.pending):
        store = _reader(progress, tensor, seed, own, place)
        if store is not None:
            progress.hints.setdefault(store.scalar.digest, tensor.name)
            stores.append(store)
            roots.append(tensor)
    return SortedGroup(routine, seed, row, rank, place, tuple(stores)), roots


def _reader(progress: Progress, tensor: Tensor, seed: Tensor, own: tuple[Index, ...], place: Scalar) -> Store | None:
    """Return the store of a pointwise root whose sorted axis may be any; None where it reads other places, or none."""
    definition = progress.graph.definitions[tensor]
    if not isinstance(definition, Pointwise) or len(tensor.shape) != len(seed.shape):
        return None
    for axis in range(len(tensor.shape)):
        shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :], tensor.shape[axis])
        if shape != seed.shape:
            continue
        index = (*own[:axis], own[-1], *own[axis:-1])
        try:
            body = definition.body.substitute(dict(zip(definition.variables, index, strict=True)))
            scalar = progress.expand(body, frozenset((seed,)))
        except NotReadyError:
            return None
        reads = [access for access in accesses(scalar) if access.tensor is seed]
        if reads and all(access.index == own and access.mask is None for access in reads):
            replaced = rewrite(scalar, lambda access: place if access.tensor is seed else access)
            return Store(tensor, index, cast(replaced, tensor.dtype))
    return None
