"""Grow scan groups: one running combination, and the pointwise results that read it at the same element.

A group is exclusive when its results read, at column `col`, the combination of the columns before `col`. That keeps
`cat([zeros, x.cumsum(1)[:, :-1]])` aligned with its input.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.fusion_state import NotReadyError, Progress
from kernel_lsp.generate.fusion.groups import ScanGroup, Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, product
from kernel_lsp.generate.ir.scalar import (
    TRUE,
    Access,
    Argument,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    both,
    cast,
    in_range,
    integer,
    masked,
    rewrite,
    select,
)
from kernel_lsp.generate.ir.sizes import unravel_safe
from kernel_lsp.generate.ir.tensor import Pointwise, Scan, Tensor, identity_of

POSITIONS = {"argmax": "max", "argmin": "min"}
"""Kinds that return the position of an extremum, and the kind that returns its value."""
RUNNING, RUNNING_POSITION = "running", "running_position"
"""Names of the scan's value and of its position, in the scalars of stores."""


def grow_scan(progress: Progress, seed: Tensor, definition: Scan) -> tuple[ScanGroup, list[Tensor]]:
    """Return the group of a scan with every pending root that belongs to it, and the roots that it computes."""
    draft = _ScanDraft(progress, seed, definition)
    for tensor in list(progress.pending):
        draft.offer_sibling(tensor)
    only_reader = draft.only_reader()
    if only_reader is not None and draft.replace_by(only_reader):
        return draft.group(), draft.roots
    for tensor in list(progress.pending):
        draft.offer_reader(tensor)
    return draft.group(), draft.roots


@dataclass(frozen=True)
class _Reading:
    """A store of the scan's result. `before` is True when it reads the column before its own."""

    store: Store
    before: bool


class _ScanDraft:
    """One scan along `axis` of a row space."""

    def __init__(self, progress: Progress, seed: Tensor, definition: Scan) -> None:
        self.progress, self.seed, self.axis = progress, seed, definition.axis
        self.row = progress.variable("row", product(self._outer(seed)))
        self.column = progress.variable("col", seed.shape[definition.axis])
        body = self._expanded(definition, self.column)
        shifted = _after_first(body, definition.kind, self.column)
        self.is_exclusive = shifted is not None
        self.body = shifted if shifted is not None else body
        self.definition = definition
        self.members: dict[Tensor, str] = {}
        self.roots: list[Tensor] = []
        self.stores: list[Store] = []

    def group(self) -> ScanGroup:
        axis = self.axis
        is_contiguous = all(size.constant == 1 for size in self.seed.shape[axis + 1 :])
        kinds = set(self.members.values())
        kind = next((kind for kind in POSITIONS if kind in kinds), self.definition.kind)
        body = _in_bounds(self.body, kind, self.column)
        row_shape = tuple(self._outer(self.seed))
        return ScanGroup(
            self.seed,
            kind,
            self.row,
            self.column,
            row_shape,
            is_contiguous,
            body,
            self.is_exclusive,
            tuple(self.stores),
        )

    def offer_sibling(self, tensor: Tensor) -> None:
        """Add the seed, and the other result of a scan that returns values and positions."""
        definition = self.progress.graph.definitions[tensor]
        if not isinstance(definition, Scan) or not self._is_same_scan(tensor, definition):
            return
        self.members[tensor] = definition.kind
        self.roots.append(tensor)
        name = RUNNING_POSITION if definition.kind in POSITIONS else RUNNING
        index = self._index_of(tensor, as_index(self.column))
        self.stores.append(Store(tensor, index, self._running(tensor, name)))

    def only_reader(self) -> Tensor | None:
        """Return the one pending root that reads the scan, where nothing else needs its memory."""
        graph = self.progress.graph
        readers = {entry for member in self.members for entry in graph.consumers[member]} - set(self.members)
        readers |= {output for output in graph.outputs if output in self.members}
        if len(self.members) != 1 or len(readers) != 1:
            return None
        reader = next(iter(readers))
        return reader if reader in self.progress.pending and reader not in self.members else None

    def replace_by(self, reader: Tensor) -> bool:
        """Specialize the scan for one reader, which may have other columns and read those before."""
        definition = self.progress.graph.definitions[reader]
        if not isinstance(definition, Pointwise) or not self._has_same_rows(reader):
            return False
        column = self.progress.variable("col", reader.shape[self.axis])
        reading = self._reading(reader, definition, column)
        if reading is None or (reading.before and self.is_exclusive):
            return False
        self.body = self.body.substitute({self.column: as_index(column)})
        self.is_exclusive = self.is_exclusive or reading.before
        self.column = column
        self.roots.append(reader)
        self.stores = [reading.store]
        return True

    def offer_reader(self, tensor: Tensor) -> None:
        """Add a pointwise root that reads the scan at its own element."""
        definition = self.progress.graph.definitions[tensor]
        if not isinstance(definition, Pointwise) or not self.progress.is_ready(tensor, self.roots):
            return
        if not self._has_same_rows(tensor):
            return
        if not self.progress.sizes.same(tensor.shape[self.axis], self.column.extent):
            return
        reading = self._reading(tensor, definition, self.column)
        if reading is not None and not reading.before:
            self.roots.append(tensor)
            self.stores.append(reading.store)

    def _outer(self, tensor: Tensor) -> list[Index]:
        return [size for position, size in enumerate(tensor.shape) if position != self.axis]

    def _index_of(self, tensor: Tensor, column: Index) -> tuple[Index, ...]:
        index = list(unravel_safe(as_index(self.row), self._outer(tensor)))
        index.insert(self.axis, ZERO if tensor.shape[self.axis].constant == 1 else column)
        return tuple(index)

    def _expanded(self, definition: Scan, column: Variable) -> Scalar:
        index = self._index_of(self.seed, as_index(column))
        return self.progress.expand(definition.body.substitute(dict(zip(definition.variables, index, strict=True))))

    def _is_same_scan(self, tensor: Tensor, definition: Scan) -> bool:
        if tensor is self.seed:
            return True
        kinds = {POSITIONS.get(kind, kind) for kind in (definition.kind, self.definition.kind)}
        if len(kinds) != 1 or definition.axis != self.axis or tensor.shape != self.seed.shape:
            return False
        try:
            return self._expanded(definition, self.column) == self.body
        except NotReadyError:
            return False

    def _has_same_rows(self, tensor: Tensor) -> bool:
        if len(tensor.shape) != len(self.seed.shape):
            return False
        same = self.progress.sizes.same
        return all(same(left, right) for left, right in zip(self._outer(tensor), self._outer(self.seed), strict=True))

    def _running(self, tensor: Tensor, name: str = RUNNING) -> Scalar:
        return Argument(name, tensor.dtype, frozenset((self.row, self.column)))

    def _reading(self, tensor: Tensor, definition: Pointwise, column: Variable) -> _Reading | None:
        """Return the reader's store over this row space, forwards or backwards along the axis."""
        own = as_index(column)
        for place in (own, tensor.shape[self.axis] - 1 - own):
            index = self._index_of(tensor, place)
            try:
                body = definition.body.substitute(dict(zip(definition.variables, index, strict=True)))
                scalar = self.progress.expand(body, frozenset(self.members))
            except NotReadyError:
                return None
            for before in (False, True):
                read = _without_first(scalar, self.definition.kind, column) if before else scalar
                replaced = self._replaced(read, own - 1 if before else own)
                if replaced is not None:
                    return _Reading(Store(tensor, index, cast(replaced, tensor.dtype)), before)
        return None

    def _replaced(self, scalar: Scalar, place: Index) -> Scalar | None:
        """Return the scalar with reads of the scan at `place` replaced by its name; None for other reads, or none."""
        reads = [access for access in accesses(scalar) if access.tensor in self.members]
        if not reads or any(access.index != self._index_of(access.tensor, place) for access in reads):
            return None
        return rewrite(scalar, self._named)

    def _named(self, access: Access) -> Scalar:
        if access.tensor not in self.members:
            return access
        name = RUNNING_POSITION if self.members[access.tensor] in POSITIONS else RUNNING
        value = self._running(access.tensor, name)
        if access.mask is None:
            return value
        return select(access.mask, value, Constant(False if value.dtype == DType.BOOL else 0, value.dtype))


def _after_first(body: Scalar, kind: str, column: Variable) -> Scalar | None:
    """Return f where the body is ``col < 1 ? identity : f(col - 1)``, so that the scan is the exclusive one of f."""
    if isinstance(body, Operation) and body.name == "cast":
        inner = _after_first(body.operands[0], kind, column)
        return None if inner is None else cast(inner, body.dtype)
    if kind in POSITIONS or not _begins_with_identity(body, kind, column):
        return None
    return body.operands[2].substitute({column: as_index(column) + 1})


def _without_first(scalar: Scalar, kind: str, column: Variable) -> Scalar:
    """Return f for ``col < 1 ? identity : f``, where f reads what comes before `col`: that is the identity at 0."""
    if isinstance(scalar, Operation) and scalar.name == "cast":
        return cast(_without_first(scalar.operands[0], kind, column), scalar.dtype)
    if kind in POSITIONS or not _begins_with_identity(scalar, kind, column):
        return scalar
    holds = Operation("ge", DType.BOOL, (IndexValue(as_index(column)), integer(1)))

    rest = _assuming(scalar.operands[2], holds)
    return rest if isinstance(rest, Access) and rest.mask is None else scalar


def _assuming(scalar: Scalar, holds: Scalar) -> Scalar:
    """Return the scalar under the assumption that the condition holds; only casts and selects are descended into."""
    if isinstance(scalar, Access):
        return Access(scalar.tensor, scalar.index) if scalar.mask == holds else scalar
    if isinstance(scalar, Operation) and scalar.name == "cast":
        return cast(_assuming(scalar.operands[0], holds), scalar.dtype)
    if isinstance(scalar, Operation) and scalar.name == "select" and scalar.operands[0] == holds:
        return _assuming(scalar.operands[1], holds)
    return scalar


def _begins_with_identity(scalar: Scalar, kind: str, column: Variable) -> bool:
    if not isinstance(scalar, Operation) or scalar.name != "select":
        return False
    condition, first, _ = scalar.operands
    is_identity = isinstance(first, Constant) and first.value == identity_of(kind, scalar.dtype).value
    is_first = condition == Operation("lt", DType.BOOL, (IndexValue(as_index(column)), integer(1)))
    return is_identity and is_first


def _in_bounds(body: Scalar, kind: str, column: Variable) -> Scalar:
    """Return the body with out-of-bounds reads masked. Values of columns past the last one are not used."""
    inside: Scalar = TRUE
    for access in accesses(body):
        for position, size in zip(access.index, access.tensor.shape, strict=True):
            if column in position.variables and size.constant != 1:
                inside = both(inside, in_range(position, size))
    if isinstance(inside, Constant):
        return body
    return select(inside, masked(inside, body), identity_of(POSITIONS.get(kind, kind), body.dtype))
