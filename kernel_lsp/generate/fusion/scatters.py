"""Groups of scatters: single updates, or updates of whole rows, which the kernel of the target's rows gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.generate.fusion.fusion_state import Progress
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, RowScatterGroup, ScatterGroup, Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import Access, accesses, cast
from kernel_lsp.generate.ir.sizes import ravel, unravel_safe
from kernel_lsp.generate.ir.tensor import Pointwise, Scatter, Tensor


def grow_scatter(
    progress: Progress, seed: Tensor, definition: Scatter
) -> tuple[ScatterGroup | RowScatterGroup, list[Tensor]]:
    """Return the group of a scatter with all the roots that it computes."""
    if definition.by_rows:
        return _row_scatter(progress, seed, definition)
    return _scatter(progress, seed, definition), [seed]


def n_whole_dims(tensor: Tensor, definition: Scatter) -> int:
    """Return the number of trailing dims that every update covers at an index of the dims before; 0 where updates are
    single elements, do not add, or cover all."""
    found = 0
    for variable, index, size in zip(
        reversed(definition.variables), reversed(definition.index), reversed(tensor.shape), strict=False
    ):
        if index != as_index(variable) or variable.extent != size:
            break
        found += 1
    whole = definition.variables[len(definition.variables) - found :]
    rest = definition.index[: len(definition.index) - found]
    is_row = definition.kind == "sum" and tensor.dtype.is_floating and rest and len(whole) < len(definition.variables)
    is_apart = all(variable not in index.variables for index in rest for variable in whole)
    return found if is_row and is_apart else 0


def _scatter(progress: Progress, seed: Tensor, definition: Scatter) -> ScatterGroup:
    shape = tuple(variable.extent for variable in definition.variables)
    position = progress.variable("i", product(shape))
    replacements = dict(zip(definition.variables, unravel_safe(as_index(position), shape), strict=True))
    scalar = progress.expand(definition.body.substitute(replacements))
    target = _updated_element(progress, seed, definition, replacements)
    base = _scatter_base(progress, seed, definition)
    return ScatterGroup(seed, definition.kind, position, shape, target, scalar, base)


def _updated_element(
    progress: Progress, seed: Tensor, definition: Scatter, replacements: Mapping[Variable, Index]
) -> tuple[Index, ...]:
    """Return the index of the element that an update goes to. It may read memory itself, so it is expanded like that
    of an access to the updated tensor."""
    target = Access(seed, [substitute(index, replacements) for index in definition.index])
    expanded = progress.expand(target, frozenset((seed,)))
    assert isinstance(expanded, Access)
    return expanded.index


def _scatter_base(progress: Progress, seed: Tensor, definition: Scatter) -> ElementwiseGroup:
    position = progress.variable("i", seed.n_elements)
    index = unravel_safe(as_index(position), seed.shape)
    body = progress.expand(definition.base.substitute(dict(zip(definition.base_variables, index, strict=True))))
    return ElementwiseGroup(position, seed.shape, (Store(seed, index, cast(body, seed.dtype)),))


def _row_scatter(progress: Progress, seed: Tensor, definition: Scatter) -> tuple[RowScatterGroup, list[Tensor]]:
    n_whole = n_whole_dims(seed, definition)
    n_leading, n_axes = len(definition.variables) - n_whole, len(seed.shape) - n_whole
    shape = [variable.extent for variable in definition.variables[:n_leading]]
    update = progress.variable("update", product(shape))
    row = progress.variable("row", product(seed.shape[:n_axes]))
    column = progress.variable("col", product(seed.shape[n_axes:]))
    along = unravel_safe(as_index(column), seed.shape[n_axes:])
    at = (*unravel_safe(as_index(row), seed.shape[:n_axes]), *along)
    replacements = dict(zip(definition.variables, (*unravel_safe(as_index(update), shape), *along), strict=True))
    target = _updated_element(progress, seed, definition, replacements)
    base = progress.expand(definition.base.substitute(dict(zip(definition.base_variables, at, strict=True))))
    value = progress.expand(definition.body.substitute(replacements))
    place = ravel(target[:n_axes], seed.shape[:n_axes])
    stores, roots = _row_stores(progress, seed, at)
    return RowScatterGroup(seed, update, row, column, place, value, base, at, tuple(stores)), [seed, *roots]


def _row_stores(progress: Progress, seed: Tensor, at: Sequence[Index]) -> tuple[list[Store], list[Tensor]]:
    """Return the pointwise results that read the sum at their own index alone, such as its conversion."""
    own = Access(seed, tuple(at))
    stores: list[Store] = []
    for tensor in progress.pending:
        definition = progress.graph.definitions[tensor]
        if not isinstance(definition, Pointwise) or tensor.shape != seed.shape or not progress.is_ready(tensor, [seed]):
            continue
        scalar = progress.element(tensor, own.index, frozenset((seed,)))
        if scalar is not None and [a.digest for a in accesses(scalar) if a.tensor is seed] == [own.digest]:
            stores.append(Store(tensor, own.index, scalar))
    return stores, [store.tensor for store in stores]


__all__ = ["grow_scatter", "n_whole_dims"]
