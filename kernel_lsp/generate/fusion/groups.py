"""Groups: what one kernel computes, as the templates take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.reads import scalars_of
from kernel_lsp.generate.index import Index, Variable
from kernel_lsp.generate.row_major import reshape, unravel_safe
from kernel_lsp.generate.scalar import IndexValue, Scalar
from kernel_lsp.generate.tensor import LibraryCall, LibraryResult, Tensor


@dataclass(frozen=True)
class Store:
    """Element `index` of `tensor` is `scalar`, over the coordinates of a group."""

    tensor: Tensor
    index: tuple[Index, ...]
    scalar: Scalar


@dataclass(frozen=True)
class ElementwiseGroup:
    """One thread per element of `shape`, at flat position `position`."""

    position: Variable
    shape: tuple[Index, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class RowReduction:
    """`scalar` combined over the columns. `level` counts the reductions of the group that it needs first."""

    tensor: Tensor
    kind: str
    scalar: Scalar
    level: int
    stored: bool = False


@dataclass(frozen=True)
class RowGroup:
    """Reductions along rows. `is_column_contiguous`: neighbours in memory belong to one row, else to several.

    `stores` have a value per element, `row_stores` one per row.
    """

    row: Variable
    column: Variable
    row_shape: tuple[Index, ...]
    column_shape: tuple[Index, ...]
    is_column_contiguous: bool
    reductions: tuple[RowReduction, ...]
    stores: tuple[tuple[int, Store], ...]
    row_stores: tuple[Store, ...]


@dataclass(frozen=True)
class ContractionGroup:
    """A sum of products with everything pointwise behind it. `left` is over (batch, m, k), `right` over (batch, k, n);
    stores are over (batch, m, n) and read the sum as an access to `tensor` at `variables`. `operand` is the element
    type that tensor cores multiply; None on CUDA cores."""

    tensor: Tensor
    batch: Variable
    m: Variable
    n: Variable
    k: Variable
    left: Scalar
    right: Scalar
    at: tuple[Index, ...]
    row_shape: tuple[Index, ...]
    reduced: tuple[Variable, ...]
    stores: tuple[Store, ...]
    operand: DType | None = None


@dataclass(frozen=True)
class ScanGroup:
    """A running combination along columns, written for every element."""

    tensor: Tensor
    kind: str
    row: Variable
    column: Variable
    is_column_contiguous: bool
    scalar: Scalar
    index: tuple[Index, ...]


@dataclass(frozen=True)
class ScatterGroup:
    """Updates of a tensor that a fill or another group has prepared, at flat position `position` of the updates."""

    tensor: Tensor
    kind: str
    position: Variable
    shape: tuple[Index, ...]
    index: tuple[Index, ...]
    scalar: Scalar
    mask: Scalar | None
    base: ElementwiseGroup | None


@dataclass(frozen=True)
class LibraryGroup:
    """A vendor library call that writes `tensor`."""

    tensor: Tensor
    call: LibraryCall


Group = ElementwiseGroup | RowGroup | ContractionGroup | ScanGroup | ScatterGroup | LibraryGroup


@dataclass(frozen=True)
class FusedGraph:
    """Groups in launch order; `stored` are the tensors that get memory; `hints` names what scalars stand for."""

    groups: tuple[Group, ...]
    stored: frozenset[Tensor]
    hints: Mapping[bytes, str]


def scalars_of_group(group: Group) -> list[Scalar]:
    """Everything that the group evaluates."""
    match group:
        case ElementwiseGroup():
            return [store.scalar for store in group.stores]
        case RowGroup():
            stores = [*(store for _, store in group.stores), *group.row_stores]
            return [*(reduction.scalar for reduction in group.reductions), *(store.scalar for store in stores)]
        case ContractionGroup():
            return [group.left, group.right, *(store.scalar for store in group.stores)]
        case ScanGroup():
            return [group.scalar]
        case ScatterGroup():
            carriers: list[Scalar] = [IndexValue(index) for index in group.index]
            base = [store.scalar for store in group.base.stores] if group.base else []
            return [group.scalar, *carriers, *base, *([group.mask] if group.mask is not None else [])]
        case LibraryGroup():
            return scalars_of(LibraryResult(group.call))


def row_index(row: Index, row_shape: Sequence[Index], tensor: Tensor) -> tuple[Index, ...]:
    """Where the result of a row lies in a tensor that has one element per row."""
    return reshape(unravel_safe(row, row_shape), row_shape, tensor.shape)
