"""Tensors as definitions: the values of their elements, independent of storage, and identities of reductions."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.core.task import SourceLine
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.digest import digest_of
from kernel_lsp.generate.ir.index import Index, product
from kernel_lsp.generate.ir.scalar import Access, Constant, Scalar, rewrite


@dataclass(frozen=True)
class Buffer:
    """Definition of a tensor already in memory: an argument of the operation."""


@dataclass(frozen=True)
class Pointwise:
    """Element `variables` is `body`. Views are pointwise: a body that is one access."""

    variables: tuple[Variable, ...]
    body: Scalar


@dataclass(frozen=True)
class LibraryCall:
    """An ATen function, e.g. ``aten::mm``, and the shape of its result. Arguments are tensors, which must lie in
    memory, numbers, lists of numbers, or None."""

    function: str
    arguments: tuple[Tensor | float | bool | tuple[int, ...] | None, ...]
    shape: tuple[Index, ...]


@dataclass(frozen=True)
class LibraryResult:
    """Definition of a tensor that a library call returns, at `place` among its results."""

    call: LibraryCall
    place: int = 0


@dataclass(frozen=True)
class Routine:
    """A tensor that one kernel of an own algorithm computes from `operands`, which must lie in memory.

    Kinds: ``ascending`` and ``descending`` (the places of the elements of each row of the operand, sorted; as many as
    the result's last dim); ``lstm``, ``gru``, ``tanh`` and ``relu``, alone or with ``_reversed`` (the states of a
    recurrent layer); ``window_gradients`` (the sums of each block of `codegen.routines.window_gradients`, whose numbers
    are `settings`); ``depthwise_gradients`` (that of the input, `place` 0, and the sums of each block of
    `codegen.routines.depthwise_gradients`, `place` 1; element `variables` of the gradient that comes in is `body`).
    """

    kind: str
    operands: tuple[Tensor, ...]
    settings: tuple[int, ...] = ()
    variables: tuple[Variable, ...] = ()
    body: Scalar | None = None
    place: int = 0


@dataclass(frozen=True)
class Phases:
    """Another form of a contraction, whose rows along `axes` of the result go in strides.

    Along these axes the result's index is `positions`, over `phases`, which are batches, and `rows`; positions may be
    out of bounds. `left` and `right` are over those, numbers of the phase, the result's other variables and `reduced`,
    which run up to `limits`. The tensors in `stored` must lie in memory.
    """

    axes: tuple[int, ...]
    phases: tuple[Variable, ...]
    numbers: tuple[tuple[Variable, Index], ...]
    rows: tuple[Variable, ...]
    positions: tuple[Index, ...]
    reduced: tuple[Variable, ...]
    limits: tuple[Index, ...]
    left: Scalar
    right: Scalar
    stored: tuple[Tensor, ...]


@dataclass(frozen=True)
class CopiedFactor:
    """Another form of a contraction's right factor, which reads the tensor `stored`: a copy in an order that tiles read
    in whole pieces."""

    right: Scalar
    stored: Tensor


@dataclass(frozen=True)
class Contraction:
    """The factors of a contraction ``sum over k of left(batch, m, k) * right(batch, k, n)``.

    `batch_axes`, `row_axes` (m) and `column_axes` (n) are axes of the result. `library` is the equivalent ATen call, if
    there is one; `way` is the template that computes it, if one of ours does; tensor cores compute it by `phases`,
    where it has them. The factors are those of the contraction where `conditions` on sizes hold. `copied` is what a
    copy of the right one's tensor would make of it; the tensors in `stored` must lie in memory. `term` is what is
    summed: the product, or the square or magnitude of the difference, which tiles on CUDA cores compute alone.
    """

    left: Scalar
    right: Scalar
    batch_axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    column_axes: tuple[int, ...]
    library: LibraryCall | None = None
    way: str = "tiled"
    phases: Phases | None = None
    conditions: tuple[Expression, ...] = ()
    copied: CopiedFactor | None = None
    stored: tuple[Tensor, ...] = ()
    term: str = "product"

    @property
    def form_by_phases(self) -> Phases | None:
        """Return the form in phases where it is the one that is computed."""
        return self.phases if self.way == "tensor_cores" else None


@dataclass(frozen=True)
class Parts:
    """Row ``part * length + within`` of `n_rows`."""

    part: Variable
    within: Variable
    n_rows: Index


@dataclass(frozen=True)
class Reduction:
    """Element `variables` is `body` combined over `reduced`. `domain` is all variables in the order of the memory that
    the body walks. Kinds: sum, prod, max, min, any, all, argmax, argmin (these return the position in `reduced`).

    `parts` says that the rows of a reduction over rows were split: which part, and the row within it. `of_lines`: a
    kernel of longer rows, of which these rows are lines, may compute it.
    """

    kind: str
    variables: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    domain: tuple[Variable, ...]
    body: Scalar
    contraction: Contraction | None = None
    parts: Parts | None = None
    of_lines: bool = False


@dataclass(frozen=True)
class Scan:
    """Element `variables` is `body` combined over all positions up to it along `axis`.

    Kinds: sum, prod, logsumexp, max, min, argmax, argmin (these return the position of the last of equal extremes)."""

    kind: str
    variables: tuple[Variable, ...]
    axis: int
    body: Scalar


@dataclass(frozen=True)
class Attention:
    """Element `variables` is the sum over `key` of softmax(`score`) times `value`, where the softmax is over `key`.

    `score` reads the sum over `head` of `query_part` times `key_part` as the argument ``product``. Axes are those of a
    `Contraction`. With `is_safe` a query that sees no key has zeros, else NaN.
    """

    variables: tuple[Variable, ...]
    key: Variable
    head: Variable
    query_part: Scalar
    key_part: Scalar
    value: Scalar
    score: Scalar
    is_safe: bool
    batch_axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    column_axes: tuple[int, ...]


@dataclass(frozen=True)
class LogSums:
    """Element `variables` is the logarithm of the sum of exponentials of a query's scores, which the attention whose
    element is `result` finds. `at` is the index of it at the attention's own variables. A library may give it and the
    gradients that read it where `has_library`."""

    variables: tuple[Variable, ...]
    result: Access
    at: tuple[Index, ...]
    has_library: bool = False


@dataclass(frozen=True)
class AttentionGradient:
    """A gradient of an attention, or the statistics of its queries, by recomputed scores.

    With P = softmax(`score`), dP = `grad_scale` * sum over `width` of `grad` * `value`, and dS = P * (dP - row sum of
    P * dP): kind ``query`` is `factor` * dS times keys, ``key`` is `factor` * transposed dS times queries, ``value`` is
    `factor` * transposed P times `grad`. The last two are sums over `shared` heads, too. Kind ``statistics`` has, in
    its last dim, the logarithm of the sum of exponentials of a query's scores, and its row sum; the others read both at
    `statistics`. Where it `hides`, dS of a key that a query does not see is 0 whatever P and dP are. Axes are those of
    a `Contraction`.
    """

    kind: str
    variables: tuple[Variable, ...]
    m: Variable
    key: Variable
    head: Variable
    width: Variable
    shared: tuple[Variable, ...]
    query_part: Scalar
    key_part: Scalar
    value: Scalar
    grad: Scalar
    score: Scalar
    factor: float
    grad_scale: float
    is_safe: bool
    batch_axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    column_axes: tuple[int, ...]
    statistics: tuple[Access, Access] | None = None
    hides: bool = False


@dataclass(frozen=True)
class Scatter:
    """A copy of `base`, then for every value of `variables`: element `index` is set to, or combined with, `body`.

    Kinds: set, sum. `by_rows`: the sums are gathered, row by row.
    """

    kind: str
    base: Scalar
    base_variables: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    index: tuple[Index, ...]
    body: Scalar
    by_rows: bool = False


@dataclass(frozen=True)
class LoopTensor:
    """A tensor that every step of a loop computes. `now` stands for it in the definitions of its step, `before` for
    that of the step before, which `first` defines for the first step. Along `batch_axes`, which are in the same order
    for all tensors of a loop, no step reads across elements."""

    now: Tensor
    before: Tensor
    definition: Pointwise | Reduction
    first: Pointwise | None = None
    batch_axes: tuple[int, ...] = ()

    @property
    def batch(self) -> tuple[Index, ...]:
        """The sizes along the batch axes."""
        return tuple(self.now.shape[axis] for axis in self.batch_axes)

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The axes of the elements that a step may read at one place along the batch."""
        return tuple(axis for axis in range(len(self.now.shape)) if axis not in self.batch_axes)

    @property
    def own_shape(self) -> tuple[Index, ...]:
        """The sizes along the own axes."""
        return tuple(self.now.shape[axis] for axis in self.own_axes)


@dataclass(frozen=True)
class StepLoop:
    """Steps that need each other's results, in the order of `step`. Each computes `tensors` one after the other."""

    step: Variable
    tensors: tuple[LoopTensor, ...]


@dataclass(frozen=True)
class LoopResult:
    """Definition of a tensor whose element (step, *index) is that of a loop's tensor `place` after this step. A tensor
    with one step has the last."""

    loop: StepLoop
    place: int


Definition = (
    Buffer
    | Pointwise
    | Reduction
    | Attention
    | LogSums
    | AttentionGradient
    | Scan
    | Scatter
    | LibraryResult
    | Routine
    | LoopResult
)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph. `name` is an identifier after the user's variable; `serial` orders by definition."""

    name: str
    serial: int
    dtype: DType
    shape: tuple[Index, ...]
    definition: Definition
    source: SourceLine | None = None
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of("tensor", self.name, self.serial))

    @property
    def n_elements(self) -> Index:
        return product(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}#{self.serial}: {self.dtype}{list(self.shape)} {type(self.definition).__name__}"


def is_view(tensor: Tensor) -> bool:
    """Return True if each element is one of another tensor, whatever the index."""
    definition = tensor.definition
    return isinstance(definition, Pointwise) and isinstance(definition.body, Access) and definition.body.mask is None


def through_views(scalar: Scalar) -> Scalar:
    """Return the scalar with reads of views as reads of what they view."""

    def read(access: Access) -> Scalar:
        while is_view(access.tensor):
            definition = access.tensor.definition
            assert isinstance(definition, Pointwise)
            source = definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))
            assert isinstance(source, Access)
            access = Access(source.tensor, source.index, access.mask)
        return access

    return rewrite(scalar, read)


def pattern_of(definition: Reduction) -> tuple[tuple[str, Index], ...]:
    """Return the runs of outer (``o``) and reduced (``r``) dims of a reduction with their extents, in memory order.
    Dims of size 1 are left out."""
    runs: list[tuple[str, Index]] = []
    for variable in definition.domain:
        kind = "r" if variable in definition.reduced else "o"
        if variable.extent.constant == 1:
            continue
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] * variable.extent)
        else:
            runs.append((kind, variable.extent))
    return tuple(runs)


def identity_of(kind: str, dtype: DType) -> Constant:
    """Return the identity element of the kind of reduction: its result over no elements."""
    if kind in ("sum", "any"):
        return Constant(False if dtype == DType.BOOL else 0, dtype)
    if kind in ("prod", "all"):
        return Constant(True if dtype == DType.BOOL else 1, dtype)
    if kind == "logsumexp":
        return Constant(float("-inf"), dtype)
    if dtype.is_floating:
        return Constant(float("-inf" if kind == "max" else "inf"), dtype)
    if dtype in (DType.U8, DType.BOOL):
        return Constant(0 if kind == "max" else (1 if dtype == DType.BOOL else 255), dtype)
    n_bits = 8 * dtype.itemsize
    return Constant(-(1 << (n_bits - 1)) if kind == "max" else (1 << (n_bits - 1)) - 1, dtype)
