"""Groups: the work of one kernel, in the form that the templates take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.fusion.graph import scalars_of
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, product
from kernel_lsp.generate.ir.scalar import Access, Argument, IndexValue, Scalar, accesses
from kernel_lsp.generate.ir.sizes import reshape, unravel_safe
from kernel_lsp.generate.ir.tensor import LibraryCall, LibraryResult, LoopResult, Routine, StepLoop, Tensor
from kernel_lsp.generate.library import without_scale


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
class WholeReduction:
    """`scalar` combined over all values of `position`: one result, which every block computes for itself."""

    tensor: Tensor
    kind: str
    position: Variable
    scalar: Scalar


@dataclass(frozen=True)
class ColumnSum:
    """Element (part, column) of `tensor` is the sum of `scalar` over the rows of a part. `level` as in a reduction."""

    tensor: Tensor
    part: Variable
    length: Index
    scalar: Scalar
    level: int


@dataclass(frozen=True)
class RowGroup:
    """Reductions along rows. `is_column_contiguous`: neighbours in memory belong to one row, else to several.

    `stores` have a value per element, `row_stores` one per row; `wholes` are known before any row, and
    `column_sums` add up over rows: then each block takes the rows of a part, one after the other. A row is made of
    lines of `line` columns, neighbours in memory, where packs divide those. `line_sums` have a value per line, and
    `line_stores` depend on them: those are over rows and `line_number`.
    """

    row: Variable
    column: Variable
    row_shape: tuple[Index, ...]
    column_shape: tuple[Index, ...]
    is_column_contiguous: bool
    reductions: tuple[RowReduction, ...]
    stores: tuple[tuple[int, Store], ...]
    row_stores: tuple[Store, ...]
    wholes: tuple[WholeReduction, ...] = ()
    column_sums: tuple[ColumnSum, ...] = ()
    line: Index | None = None
    line_number: Variable | None = None
    line_sums: tuple[RowReduction, ...] = ()
    line_stores: tuple[Store, ...] = ()
    is_by_lines: bool = False

    @property
    def n_columns(self) -> Index:
        """Return the number of columns of a row. Where the group `is_by_lines`, `column` is one of a line."""
        if self.is_by_lines and self.line_number is not None:
            return self.column.extent * self.line_number.extent
        return self.column.extent


@dataclass(frozen=True)
class PhasesOfGroup:
    """Batches of a contraction that are phases: `uniform` are numbers of a batch, the phase along each axis and the
    extents of the summed dims that differ from phase to phase, and `shape` is the summed dims' with those. Sums where
    `inside` is false are not stored. The results of `n_in_line` phases alternate along the lines of memory; these
    phases follow each other in steps of `n_inner` batches."""

    uniform: tuple[tuple[Variable, Index], ...]
    shape: tuple[Index, ...]
    inside: Scalar
    n_in_line: int = 1
    n_inner: int = 1


@dataclass(frozen=True)
class ContractionGroup:
    """A sum of products with everything pointwise behind it. `left` is over (batch, m, k), `right` over (batch, k,
    n); stores are over (batch, m, n) and read the sum as an access to `tensor` at `at`. `way` is the template;
    `operand` is the element type that tensor cores multiply, None on CUDA cores. The kernel supports the sizes for
    which `conditions` hold. `term` is what is summed, as in `Contraction`."""

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
    way: str = "tiled"
    operand: DType | None = None
    phases: PhasesOfGroup | None = None
    conditions: tuple[Expression, ...] = ()
    term: str = "product"

    @property
    def has_batch(self) -> bool:
        """Return True if there is more than one item of the batch."""
        return self.batch.extent.constant != 1

    @property
    def n_terms(self) -> Index:
        """Return the number of products of a sum: the extent of k, or what a phase has of it."""
        return self.k.extent if self.phases is None else product(self.phases.shape)

    @property
    def unscaled(self) -> tuple[Scalar, Scalar, float]:
        """Return the factors that tensor cores multiply, and the number that their sum is then multiplied by."""
        if self.operand != DType.F32:
            return self.left, self.right, 1.0
        (left, left_scale), (right, right_scale) = without_scale(self.left), without_scale(self.right)
        return left, right, left_scale * right_scale

    @property
    def transposed(self) -> ContractionGroup:
        """Return the same sums with the right factor on the left."""
        return replace(self, m=self.n, n=self.m, left=self.right, right=self.left, row_shape=())


@dataclass(frozen=True)
class AttentionGroup:
    """Attention with everything pointwise behind it. `query_part` is over (batch, m, head), `key_part` over
    (batch, key, head), `value` over (batch, key, n), `score` over (batch, m, key); stores are over (batch, m, n) and
    read the result as an access to `tensor` at `at`. The logarithm of each query's sum of exponentials is stored at
    `log_sums`, over (batch, m), if anywhere."""

    tensor: Tensor
    batch: Variable
    m: Variable
    n: Variable
    key: Variable
    head: Variable
    query_part: Scalar
    key_part: Scalar
    value: Scalar
    score: Scalar
    is_safe: bool
    at: tuple[Index, ...]
    stores: tuple[Store, ...]
    log_sums: Access | None = None


@dataclass(frozen=True)
class GradientOutput:
    """One result of a gradient group, over (batch, row, `column`), where rows are queries or keys. Stores read it as an
    access to `tensor` at `at`. Kinds are those of `AttentionGradient`."""

    kind: str
    tensor: Tensor
    column: Variable
    at: tuple[Index, ...]
    factor: float
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class AttentionGradientGroup:
    """Gradients of an attention that one kernel computes: of queries, of keys and values, or the statistics, which have
    no output but `tensor`. Factors are over (batch, shared, m or key, head or width); `shared` counts the heads of
    queries that share a key. The logarithm of a query's sum of exponentials, and its row sum, are at `statistics`, over
    (batch, shared, m). `hides` as in an `AttentionGradient`."""

    kind: str
    tensor: Tensor
    batch: Variable
    shared: Variable
    m: Variable
    key: Variable
    head: Variable
    width: Variable
    query_part: Scalar
    key_part: Scalar
    value: Scalar
    grad: Scalar
    score: Scalar
    grad_scale: float
    is_safe: bool
    statistics: tuple[Access, Access]
    outputs: tuple[GradientOutput, ...]
    hides: bool = False

    @property
    def is_by_query(self) -> bool:
        """Return True if blocks own queries and loop over keys."""
        return self.kind != "key"


@dataclass(frozen=True)
class ScanGroup:
    """A running combination of `scalar` along columns; of the columns before each with `is_exclusive`.

    `row_shape` are the other dims. Stores are over (row, column) and read the combination as arguments by name.
    """

    tensor: Tensor
    kind: str
    row: Variable
    column: Variable
    row_shape: tuple[Index, ...]
    is_column_contiguous: bool
    scalar: Scalar
    is_exclusive: bool
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class ScatterGroup:
    """Updates of a tensor that another group has prepared, at flat position `position` of the updates."""

    tensor: Tensor
    kind: str
    position: Variable
    shape: tuple[Index, ...]
    index: tuple[Index, ...]
    scalar: Scalar
    base: ElementwiseGroup


@dataclass(frozen=True)
class RowScatterGroup:
    """Updates that each add a whole row to one of a tensor, with everything pointwise behind the sums.

    `place` is the row that `update` adds to; `value` is over (update, column), `base` over (row, column); stores are
    over (row, column) and read the sum as an access to `tensor` at `at`.
    """

    tensor: Tensor
    update: Variable
    row: Variable
    column: Variable
    place: Index
    value: Scalar
    base: Scalar
    at: tuple[Index, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class LibraryGroup:
    """A vendor library call that writes `tensors`."""

    tensors: tuple[Tensor, ...]
    call: LibraryCall


@dataclass(frozen=True)
class RoutineGroup:
    """A kernel of an own algorithm that writes `tensor`, and `others`, the routine's further results."""

    tensor: Tensor
    routine: Routine
    others: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class PermutedSteps:
    """A tensor with the elements of all steps of a loop's tensor `place`, whose axis i is axis `axes[i]` of these."""

    tensor: Tensor
    place: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class LoopGroup:
    """A kernel that walks over the steps of a loop. `tensors` are its results by place; None is in no memory."""

    loop: StepLoop
    tensors: tuple[Tensor | None, ...]
    permuted: tuple[PermutedSteps, ...] = ()


@dataclass(frozen=True)
class SortedGroup:
    """A kernel that finds the first elements of each row of `source` in sorted order. Stores are over `row` and `rank`;
    the place of an element in its row is their argument `place`, and `places` holds it where others read it."""

    routine: Routine
    places: Tensor
    row: Variable
    rank: Variable
    place: Argument
    stores: tuple[Store, ...]

    @property
    def source(self) -> Tensor:
        return self.routine.operands[0]

    @property
    def is_descending(self) -> bool:
        return self.routine.kind == "descending"

    @property
    def length(self) -> Index:
        """Return the elements of a row."""
        return self.source.shape[-1]

    @property
    def count(self) -> Index:
        """Return the elements of a row that are wanted."""
        return self.rank.extent

    @property
    def n_rows(self) -> Index:
        return self.row.extent


Group = (
    ElementwiseGroup
    | RowGroup
    | ContractionGroup
    | AttentionGroup
    | AttentionGradientGroup
    | ScanGroup
    | ScatterGroup
    | RowScatterGroup
    | LibraryGroup
    | RoutineGroup
    | LoopGroup
    | SortedGroup
)


@dataclass(frozen=True)
class FusedGraph:
    """Groups in launch order; `stored` are the tensors with memory; `hints` are the names of scalars."""

    groups: tuple[Group, ...]
    stored: frozenset[Tensor]
    hints: Mapping[bytes, str]


def scalars_of_group(group: Group) -> list[Scalar]:
    """Return every scalar that the group evaluates."""
    match group:
        case ElementwiseGroup():
            return [store.scalar for store in group.stores]
        case RowGroup():
            stores = [*(store for _, store in group.stores), *group.row_stores, *group.line_stores]
            reductions = [entry.scalar for entry in (*group.reductions, *group.line_sums)]
            sums = [*(entry.scalar for entry in group.wholes), *(entry.scalar for entry in group.column_sums)]
            return [*sums, *reductions, *(store.scalar for store in stores)]
        case ContractionGroup():
            return [group.left, group.right, *(store.scalar for store in group.stores)]
        case AttentionGroup():
            factors = [group.query_part, group.key_part, group.value, group.score]
            return [*factors, *(store.scalar for store in group.stores)]
        case AttentionGradientGroup():
            factors = [group.query_part, group.key_part, group.value, group.grad, group.score]
            read = group.statistics if group.outputs else ()
            return [*factors, *read, *(store.scalar for output in group.outputs for store in output.stores)]
        case ScanGroup():
            return [group.scalar, *(store.scalar for store in group.stores)]
        case ScatterGroup():
            carriers: list[Scalar] = [IndexValue(index) for index in group.index]
            return [group.scalar, *carriers, *(store.scalar for store in group.base.stores)]
        case RowScatterGroup():
            return [group.value, IndexValue(group.place), group.base, *(store.scalar for store in group.stores)]
        case LibraryGroup():
            return scalars_of(LibraryResult(group.call))
        case RoutineGroup():
            return scalars_of(group.routine)
        case LoopGroup():
            return scalars_of(LoopResult(group.loop, 0))
        case SortedGroup():
            return [*scalars_of(group.routine), *(store.scalar for store in group.stores)]


def narrow_type(group: ElementwiseGroup | RowGroup) -> DType | None:
    """Return the type of the elements of 16 bits that the group reads and writes, f16 where there are both; None where
    there are none."""
    found = {tensor.dtype for tensor in written_by(group)}
    found |= {access.tensor.dtype for access in accesses(*scalars_of_group(group))}
    return next((dtype for dtype in (DType.F16, DType.BF16) if dtype in found), None)


def written_by(group: Group) -> set[Tensor]:
    """Return the tensors that the group writes."""
    match group:
        case AttentionGroup():
            log_sums = {group.log_sums.tensor} if group.log_sums is not None else set()
            return log_sums | {store.tensor for store in group.stores}
        case ElementwiseGroup() | ContractionGroup() | RowScatterGroup() | SortedGroup():
            return {store.tensor for store in group.stores}
        case AttentionGradientGroup():
            stores = [store for output in group.outputs for store in output.stores]
            return {store.tensor for store in stores} or {group.tensor}
        case RowGroup():
            stores = [*(store for _, store in group.stores), *group.row_stores, *group.line_stores]
            kept = {entry.tensor for entry in (*group.reductions, *group.line_sums) if entry.stored}
            return kept | {store.tensor for store in stores} | {entry.tensor for entry in group.column_sums}
        case LibraryGroup():
            return set(group.tensors)
        case RoutineGroup():
            return {group.tensor, *group.others}
        case ScanGroup() | ScatterGroup():
            return {group.tensor}
        case LoopGroup():
            return {tensor for tensor in group.tensors if tensor is not None} | {each.tensor for each in group.permuted}


def row_index(row: Index, row_shape: Sequence[Index], tensor: Tensor) -> tuple[Index, ...]:
    """Return the index of a row's result in a tensor with one element per row."""
    return reshape(unravel_safe(row, row_shape), row_shape, tensor.shape)


def own_stores(
    entries: Sequence[RowReduction], index_of: Callable[[RowReduction], tuple[Index, ...]]
) -> Iterator[Store]:
    """Yield the stores of those reductions that are results themselves."""
    for entry in entries:
        if entry.stored:
            index = index_of(entry)
            yield Store(entry.tensor, index, Access(entry.tensor, index))
