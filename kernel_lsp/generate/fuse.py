"""Which definitions share a kernel. The result is a list of groups in launch order, each of which one template renders.

A pointwise definition is inlined into whatever reads it, unless that would repeat real work. Reductions, contractions,
scans and scatters are roots: something computes them once. A row group holds reductions over one row space, the
pointwise results of that space, and everything per row between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.errors import InternalError
from kernel_lsp.generate.index import Index, Sizes, Variable, as_index, product, ravel, reshape, unravel
from kernel_lsp.generate.scalar import (
    Access,
    Constant,
    IndexValue,
    Loop,
    Operation,
    Scalar,
    accesses,
    cast,
    masked,
    nodes,
    rewrite,
)
from kernel_lsp.generate.tensor import (
    Buffer,
    Definition,
    LibraryCall,
    LibraryResult,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Tensor,
)

MAX_REPEATED_NODES = 60
"""A pointwise definition larger than this that several kernels read is computed once and stored."""
MAX_FREE_OPERATIONS = 2
_COSTLY = "exp exp2 expm1 log log1p log2 log10 erf erfc tanh sigmoid gelu gelu_tanh silu pow sin cos tan"
COSTLY = frozenset(_COSTLY.split())


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
    stores are over (batch, m, n) and read the sum as an access to `tensor` at `variables`."""

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


def fuse(
    tensors: Sequence[Tensor], outputs: Sequence[Tensor], definitions: Mapping[Tensor, Definition], sizes: Sizes
) -> FusedGraph:
    """Group the definitions that the outputs need. `definitions` overrides what tensors say of themselves."""
    return _Fuser(tensors, outputs, definitions, sizes).run()


def live_tensors(outputs: Sequence[Tensor], definitions: Mapping[Tensor, Definition]) -> list[Tensor]:
    """Every tensor that the outputs need, in the order of definition."""
    found: set[Tensor] = set()
    pending = list(outputs)
    while pending:
        tensor = pending.pop()
        if tensor not in found:
            found.add(tensor)
            scalars = _scalars_of(definitions.get(tensor, tensor.definition))
            pending.extend(access.tensor for access in accesses(*scalars))
    return sorted(found, key=lambda tensor: tensor.serial)


# --- below: how


class NotReadyError(Exception):
    """The scalar reads a root that no earlier group has computed."""


@dataclass
class _Draft:
    """A group that still takes members."""

    roots: list[Tensor] = field(default_factory=list)


class _Fuser:
    def __init__(
        self,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        definitions: Mapping[Tensor, Definition],
        sizes: Sizes,
    ) -> None:
        self.sizes, self.outputs = sizes, outputs
        self.definitions = {tensor: definitions.get(tensor, tensor.definition) for tensor in tensors}
        self.hints: dict[bytes, str] = {}
        self.scheduled: set[Tensor] = set()
        self.read_by_others: set[Tensor] = set()
        self._expanded: dict[bytes, Scalar] = {}
        self._needs: dict[Tensor, frozenset[Tensor]] = {}
        self._local: frozenset[Tensor] = frozenset()
        self._n_variables = 0
        self.live = live_tensors(outputs, self.definitions)
        self.consumers = self._find_consumers()
        self.forced: set[Tensor] = set()
        self._find_forced()
        self.pending = [tensor for tensor in self.live if self._is_root(tensor)]

    def run(self) -> FusedGraph:
        groups: list[Group] = []
        while self.pending:
            seed = self._choose_seed()
            groups.append(self._grow(seed))
        stored = frozenset(self.read_by_others | set(self.outputs))
        missing = [tensor.name for tensor in stored if tensor not in self.scheduled]
        if missing:
            raise InternalError(f"no kernel computes {', '.join(missing)}", next_step="please report this target")
        kept = [self._with_stored(group, stored) for group in groups]
        return FusedGraph(tuple(group for group in kept if _does_anything(group)), stored, self.hints)

    # --- what there is

    def _reads(self, tensor: Tensor) -> list[Tensor]:
        scalars = _scalars_of(self.definitions[tensor])
        return list(dict.fromkeys(access.tensor for access in accesses(*scalars)))

    def _find_consumers(self) -> dict[Tensor, list[Tensor]]:
        """Who reads a tensor, with views looked through."""
        consumers: dict[Tensor, list[Tensor]] = {tensor: [] for tensor in self.live}
        for reader in reversed(self.live):
            readers = consumers[reader] if self._is_view(reader) and reader not in self.outputs else [reader]
            for tensor in self._reads(reader):
                consumers[tensor].extend(entry for entry in readers if entry not in consumers[tensor])
        return consumers

    def _is_view(self, tensor: Tensor) -> bool:
        definition = self.definitions[tensor]
        return isinstance(definition, Pointwise) and isinstance(definition.body, Access)

    def _is_hard(self, tensor: Tensor) -> bool:
        return not isinstance(self.definitions[tensor], Buffer | Pointwise)

    def _is_root(self, tensor: Tensor) -> bool:
        if isinstance(self.definitions[tensor], Buffer):
            return False
        return self._is_hard(tensor) or tensor in self.forced or tensor in self.outputs

    def _find_forced(self) -> None:
        """Pointwise definitions to store although no output asks for them."""
        operands = {operand for tensor in self.live for operand in _operands_of(self.definitions[tensor])}
        for tensor in reversed(self.live):
            definition = self.definitions[tensor]
            if isinstance(definition, Pointwise) and (
                tensor in operands or (not self._is_view(tensor) and self._repeats_work(tensor, definition))
            ):
                self.forced.add(tensor)

    def _repeats_work(self, tensor: Tensor, definition: Pointwise) -> bool:
        consumers = self.consumers[tensor]
        if self._is_free(definition):
            return False
        if any(self._rereads(consumer, tensor) for consumer in consumers):
            return True
        has_loop = any(isinstance(node, Loop) for node in nodes(definition.body))
        if has_loop:
            return len(consumers) > 1 or any(self._leads_to_hard(consumer) for consumer in consumers)
        return len(consumers) > 1 and self._size_of_inlined(tensor, set()) > MAX_REPEATED_NODES

    def _is_free(self, definition: Pointwise) -> bool:
        """Whether recomputing it is as good as reading it: casts, a scale or a shift of at most one tensor."""
        operations = [node for node in nodes(definition.body) if isinstance(node, Operation)]
        n_reads = sum(1 for _ in accesses(definition.body))
        if any(isinstance(node, Loop) for node in nodes(definition.body)):
            return False
        return n_reads == 0 or (n_reads == 1 and len(operations) <= MAX_FREE_OPERATIONS and _are_cheap(operations))

    def _rereads(self, consumer: Tensor, tensor: Tensor) -> bool:
        """Whether the consumer reads each element of the tensor several times."""
        definition = self.definitions[consumer]
        if isinstance(definition, Reduction) and definition.contraction is not None:
            return True
        scalars = _scalars_of(definition)
        return any(isinstance(node, Loop) for node in nodes(*scalars))

    def _leads_to_hard(self, tensor: Tensor) -> bool:
        if tensor in self.forced:
            return False
        if self._is_hard(tensor):
            return True
        return any(self._leads_to_hard(consumer) for consumer in self.consumers[tensor])

    def _size_of_inlined(self, tensor: Tensor, seen: set[Tensor]) -> int:
        definition = self.definitions[tensor]
        if tensor in seen or not isinstance(definition, Pointwise):
            return 0
        seen.add(tensor)
        here = sum(3 if isinstance(node, Operation) and node.name in COSTLY else 1 for node in nodes(definition.body))
        return here + sum(self._size_of_inlined(read, seen) for read in self._reads(tensor))

    def needs(self, tensor: Tensor) -> frozenset[Tensor]:
        """The roots whose memory it reads, when pointwise outputs are inlined rather than read."""
        if tensor not in self._needs:
            found: set[Tensor] = set()
            for read in self._reads(tensor):
                if self._is_hard(read) or read in self.forced:
                    found.add(read)
                elif not isinstance(self.definitions[read], Buffer):
                    found |= self.needs(read)
            self._needs[tensor] = frozenset(found)
        return self._needs[tensor]

    def is_ready(self, tensor: Tensor, group: Iterable[Tensor] = ()) -> bool:
        return self.needs(tensor) <= self.scheduled.union(group)

    def _choose_seed(self) -> Tensor:
        """The first root that can be computed; a pointwise one only when no other can, for it may join a row."""
        ready = [tensor for tensor in self.pending if self.is_ready(tensor)]
        hard = [tensor for tensor in ready if self._is_hard(tensor)]
        forced = [tensor for tensor in ready if tensor in self.forced]
        return (hard or forced or ready)[0]

    # --- expansion

    def expand(self, scalar: Scalar, local: frozenset[Tensor] = frozenset()) -> Scalar:
        """The scalar with pointwise definitions inlined. Accesses to `local` roots stay, as do those to stored ones."""
        if local != self._local:
            self._local, self._expanded = local, {}
        return rewrite(scalar, self._expand_access)

    def _expand_access(self, access: Access) -> Scalar:
        done = self._expanded.get(access.digest)
        if done is None:
            done = self._expanded[access.digest] = self._inline(access)
        return done

    def _inline(self, access: Access) -> Scalar:
        tensor = access.tensor
        definition = self.definitions[tensor]
        if isinstance(definition, Buffer) or tensor in self._local:
            return access
        if tensor in self.scheduled:
            return access
        if not isinstance(definition, Pointwise):
            raise NotReadyError(tensor.name)
        body = definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))
        expanded = rewrite(body, self._expand_access)
        if access.mask is not None:
            expanded = masked(access.mask, expanded)
        if not isinstance(expanded, Access | Constant | IndexValue):
            self.hints.setdefault(expanded.digest, tensor.name)
        return expanded

    def variable(self, name: str, extent: Index) -> Variable:
        self._n_variables += 1
        return Variable(name, -self._n_variables, extent)

    # --- growing groups

    def _grow(self, seed: Tensor) -> Group:
        definition = self.definitions[seed]
        if isinstance(definition, Reduction) and definition.contraction is not None:
            group, roots = self._grow_contraction(seed, definition)
        elif isinstance(definition, Reduction):
            group, roots = self._grow_rows(seed, definition)
        elif isinstance(definition, Scan):
            group, roots = self._scan(seed, definition), [seed]
        elif isinstance(definition, Scatter):
            group, roots = self._scatter(seed, definition), [seed]
        elif isinstance(definition, LibraryResult):
            group, roots = self._library(seed, definition)
        else:
            group, roots = self._grow_elementwise(seed)
        self._finish(group, roots)
        return group

    def _finish(self, group: Group, roots: Sequence[Tensor]) -> None:
        self.scheduled |= set(roots)
        self.pending = [tensor for tensor in self.pending if tensor not in roots]
        for access in accesses(*_scalars_of_group(group)):
            if access.tensor not in roots and not isinstance(self.definitions[access.tensor], Buffer):
                self.read_by_others.add(access.tensor)
        self._expanded = {}

    def _grow_elementwise(self, seed: Tensor) -> tuple[Group, list[Tensor]]:
        """All pending pointwise roots with as many elements that are ready."""
        position = self.variable("i", seed.n_elements)
        stores: list[Store] = []
        roots: list[Tensor] = []
        for tensor in self.pending:
            if self._is_hard(tensor) or not self.sizes.same(tensor.n_elements, seed.n_elements):
                continue
            related = tensor is seed or (tensor.shape == seed.shape and self._shares_reads(seed, tensor))
            if related and self.is_ready(tensor, roots):
                index = unravel_like(as_index(position), seed.shape, tensor.shape)
                store = self._elementwise_store(tensor, index, roots)
                if store is not None:
                    stores.append(store)
                    roots.append(tensor)
        return ElementwiseGroup(position, seed.shape, tuple(stores)), roots

    def _shares_reads(self, left: Tensor, right: Tensor) -> bool:
        return bool(self._sources(left) & self._sources(right))

    def _sources(self, tensor: Tensor) -> frozenset[Tensor]:
        """The stored tensors that it reads in the end."""
        found: set[Tensor] = set()
        pending = [tensor]
        while pending:
            for read in self._reads(pending.pop()):
                if isinstance(self.definitions[read], Buffer) or self._is_hard(read) or read in self.forced:
                    found.add(read)
                else:
                    pending.append(read)
        return frozenset(found)

    def _elementwise_store(self, tensor: Tensor, index: tuple[Index, ...], roots: Sequence[Tensor]) -> Store | None:
        """The tensor at `index`, with roots of the same group inlined."""
        definition = self.definitions[tensor]
        assert isinstance(definition, Pointwise)
        try:
            body = definition.body.substitute(dict(zip(definition.variables, index, strict=True)))
            return self._named(Store(tensor, index, self.expand(body)))
        except NotReadyError:
            return None

    def _named(self, store: Store) -> Store:
        self.hints.setdefault(store.scalar.digest, store.tensor.name)
        return store

    # rows

    def _grow_rows(self, seed: Tensor, definition: Reduction) -> tuple[Group, list[Tensor]]:
        space = _RowSpace.of(definition, self)
        rows = _RowDraft(self, space)
        for tensor in list(self.pending):
            if tensor is seed or self.is_ready(tensor, rows.roots):
                rows.offer(tensor, is_seed=tensor is seed)
        # A root before the seed may need what came after it.
        for tensor in list(self.pending):
            if tensor not in rows.roots and self.is_ready(tensor, rows.roots):
                rows.offer(tensor, is_seed=False)
        return rows.group(), rows.roots

    # contractions

    def _grow_contraction(self, seed: Tensor, definition: Reduction) -> tuple[Group, list[Tensor]]:
        contraction = definition.contraction
        assert contraction is not None
        axes = (contraction.batch_axes, contraction.row_axes, contraction.column_axes)
        shapes = [[seed.shape[axis] for axis in group] for group in axes]
        coordinates = [
            self.variable(name, product(shape)) for name, shape in zip(("batch", "m", "n"), shapes, strict=True)
        ]
        k = self.variable("k", product(variable.extent for variable in definition.reduced))
        at: list[Index] = [as_index(0)] * len(seed.shape)
        for group, shape, coordinate in zip(axes, shapes, coordinates, strict=True):
            for axis, position in zip(group, unravel_safe(as_index(coordinate), shape), strict=True):
                at[axis] = position
        replacements = dict(zip(definition.variables, at, strict=True))
        reduced_shape = [variable.extent for variable in definition.reduced]
        replacements.update(zip(definition.reduced, unravel_safe(as_index(k), reduced_shape), strict=True))
        left = self.expand(contraction.left.substitute(replacements))
        right = self.expand(contraction.right.substitute(replacements))
        roots = [seed]
        stores = self._epilogue(seed, tuple(at), roots)
        batch, m, n = coordinates
        rows = tuple(shapes[1])
        return (
            ContractionGroup(seed, batch, m, n, k, left, right, tuple(at), rows, definition.reduced, tuple(stores)),
            roots,
        )

    def _epilogue(self, seed: Tensor, at: tuple[Index, ...], roots: list[Tensor]) -> list[Store]:
        """Pending pointwise roots that read the sum element by element."""
        stores: list[Store] = []
        for tensor in self.pending:
            if self._is_hard(tensor) or seed not in self.needs(tensor) or not self.is_ready(tensor, roots):
                continue
            if not self.sizes.same(tensor.n_elements, seed.n_elements):
                continue
            index = reshape(at, seed.shape, tensor.shape)
            scalar = self._local_scalar(tensor, index, frozenset((seed,)))
            if scalar is not None and _reads_only_at(scalar, seed, at):
                own = Access(seed, at)
                scalar = rewrite(scalar, _Replacement(seed, own))
                stores.append(Store(tensor, index, scalar))
                roots.append(tensor)
        return stores

    def _local_scalar(self, tensor: Tensor, index: tuple[Index, ...], local: frozenset[Tensor]) -> Scalar | None:
        definition = self.definitions[tensor]
        assert isinstance(definition, Pointwise)
        try:
            return self.expand(definition.body.substitute(dict(zip(definition.variables, index, strict=True))), local)
        except NotReadyError:
            return None

    # library calls

    def _library(self, seed: Tensor, definition: LibraryResult) -> tuple[Group, list[Tensor]]:
        """The call writes a result of the operation itself where that is all the result is."""
        readers = [tensor for tensor in self.pending if tensor is not seed and seed in self.needs(tensor)]
        if len(readers) == 1 and seed not in self.outputs and self._is_copy(readers[0], seed):
            return LibraryGroup(readers[0], definition.call), [seed, readers[0]]
        return LibraryGroup(seed, definition.call), [seed]

    def _is_copy(self, tensor: Tensor, source: Tensor) -> bool:
        definition = self.definitions[tensor]
        if not isinstance(definition, Pointwise) or tensor.shape != source.shape or tensor.dtype != source.dtype:
            return False
        index = tuple(as_index(variable) for variable in definition.variables)
        scalar = self._local_scalar(tensor, index, frozenset((source,)))
        while isinstance(scalar, Operation) and scalar.name == "cast":
            scalar = scalar.operands[0]
        is_plain = isinstance(scalar, Access) and scalar.tensor is source and scalar.mask is None
        return is_plain and ravel(scalar.index, source.shape) == ravel(index, tensor.shape)  # type: ignore[union-attr]

    # scans and scatters

    def _scan(self, seed: Tensor, definition: Scan) -> Group:
        axis = definition.axis
        outer = [size for position, size in enumerate(seed.shape) if position != axis]
        row = self.variable("row", product(outer))
        column = self.variable("col", seed.shape[axis])
        index = list(unravel_safe(as_index(row), outer))
        index.insert(axis, as_index(column))
        scalar = self.expand(definition.body.substitute(dict(zip(definition.variables, index, strict=True))))
        is_contiguous = all(size.constant == 1 for size in seed.shape[axis + 1 :])
        return ScanGroup(seed, definition.kind, row, column, is_contiguous, scalar, tuple(index))

    def _scatter(self, seed: Tensor, definition: Scatter) -> Group:
        shape = tuple(variable.extent for variable in definition.variables)
        position = self.variable("i", product(shape))
        replacements = dict(zip(definition.variables, unravel_safe(as_index(position), shape), strict=True))
        scalar = self.expand(definition.body.substitute(replacements))
        mask = None if definition.mask is None else self.expand(definition.mask.substitute(replacements))
        carrier = [Access(seed, [_substituted(index, replacements) for index in definition.index])]
        expanded = rewrite(carrier[0], lambda access: self._keep_or_expand(access, seed))
        assert isinstance(expanded, Access)
        base = self._scatter_base(seed, definition)
        return ScatterGroup(seed, definition.kind, position, shape, expanded.index, scalar, mask, base)

    def _keep_or_expand(self, access: Access, kept: Tensor) -> Scalar:
        return access if access.tensor is kept else self._expand_access(access)

    def _scatter_base(self, seed: Tensor, definition: Scatter) -> ElementwiseGroup | None:
        if definition.base is None:
            return None
        position = self.variable("i", seed.n_elements)
        index = unravel_safe(as_index(position), seed.shape)
        body = definition.base.substitute(dict(zip(definition.base_variables, index, strict=True)))
        return ElementwiseGroup(position, seed.shape, (Store(seed, index, cast(self.expand(body), seed.dtype)),))

    # --- storing

    def _with_stored(self, group: Group, stored: frozenset[Tensor]) -> Group:
        """Drop stores that nobody reads, add those of the reductions and sums that somebody does."""
        if isinstance(group, RowGroup):
            return replace(
                group,
                reductions=tuple(replace(entry, stored=entry.tensor in stored) for entry in group.reductions),
                stores=tuple((level, store) for level, store in group.stores if store.tensor in stored),
                row_stores=tuple(store for store in group.row_stores if store.tensor in stored),
            )
        if isinstance(group, ElementwiseGroup):
            return replace(group, stores=tuple(store for store in group.stores if store.tensor in stored))
        if isinstance(group, ContractionGroup):
            own = (Store(group.tensor, group.at, Access(group.tensor, group.at)),) if group.tensor in stored else ()
            return replace(group, stores=(*own, *(store for store in group.stores if store.tensor in stored)))
        return group


@dataclass(frozen=True)
class _RowSpace:
    """Rows and columns as runs of dims in the order of memory. `pattern` pairs a kind (``o`` outer, ``r`` reduced)
    with an extent; neighbours of one kind are merged and dims of size 1 dropped."""

    pattern: tuple[tuple[str, Index], ...]
    row: Variable
    column: Variable

    @classmethod
    def of(cls, definition: Reduction, fuser: _Fuser) -> _RowSpace:
        pattern = pattern_of(definition)
        rows = product(extent for kind, extent in pattern if kind == "o")
        columns = product(extent for kind, extent in pattern if kind == "r")
        return cls(pattern, fuser.variable("row", rows), fuser.variable("col", columns))

    def shape(self, kind: str) -> tuple[Index, ...]:
        return tuple(extent for entry, extent in self.pattern if entry == kind)

    @property
    def coordinates(self) -> tuple[Index, ...]:
        """One index per run."""
        rows = iter(unravel_safe(as_index(self.row), self.shape("o")))
        columns = iter(unravel_safe(as_index(self.column), self.shape("r")))
        return tuple(next(rows) if kind == "o" else next(columns) for kind, _ in self.pattern)

    @property
    def row_coordinates(self) -> tuple[Index, ...]:
        return unravel_safe(as_index(self.row), self.shape("o"))

    def matches(self, definition: Reduction, sizes: Sizes) -> bool:
        other = pattern_of(definition)
        return len(other) == len(self.pattern) and all(
            left[0] == right[0] and sizes.same(left[1], right[1])
            for left, right in zip(other, self.pattern, strict=True)
        )


class _RowDraft:
    """A row group that still takes members."""

    def __init__(self, fuser: _Fuser, space: _RowSpace) -> None:
        self.fuser, self.space = fuser, space
        self.roots: list[Tensor] = []
        self.levels: dict[Tensor, int] = {}
        self.reductions: list[RowReduction] = []
        self.stores: list[tuple[int, Store]] = []
        self.row_stores: list[Store] = []

    def offer(self, tensor: Tensor, *, is_seed: bool) -> None:
        """Take the tensor if it belongs."""
        definition = self.fuser.definitions[tensor]
        if isinstance(definition, Reduction) and definition.contraction is None:
            if is_seed or self.space.matches(definition, self.fuser.sizes):
                self._offer_reduction(tensor, definition)
        elif isinstance(definition, Pointwise) and self._is_related(tensor):
            self._offer_pointwise(tensor, definition)

    def group(self) -> RowGroup:
        is_contiguous = not self.space.pattern or self.space.pattern[-1][0] == "r"
        return RowGroup(
            self.space.row,
            self.space.column,
            self.space.shape("o"),
            self.space.shape("r"),
            is_contiguous,
            tuple(self.reductions),
            tuple(self.stores),
            tuple(self.row_stores),
        )

    def _offer_reduction(self, tensor: Tensor, definition: Reduction) -> None:
        shape = [variable.extent for variable in definition.domain]
        index = reshape(self.space.coordinates, [extent for _, extent in self.space.pattern], shape)
        scalar = self._expanded(definition.body.substitute(dict(zip(definition.domain, index, strict=True))))
        if scalar is None:
            return
        level = self._level(scalar)
        self.levels[tensor] = level + 1
        self.reductions.append(RowReduction(tensor, definition.kind, scalar, level))
        self.roots.append(tensor)

    def _offer_pointwise(self, tensor: Tensor, definition: Pointwise) -> None:
        sizes = self.fuser.sizes
        extents = [extent for _, extent in self.space.pattern]
        n_rows = product(self.space.shape("o"))
        if sizes.same(tensor.n_elements, product(extents)):
            index = reshape(self.space.coordinates, extents, tensor.shape)
            is_per_row = False
        elif sizes.same(tensor.n_elements, n_rows):
            index = reshape(self.space.row_coordinates, self.space.shape("o"), tensor.shape)
            is_per_row = True
        else:
            return
        scalar = self._expanded(definition.body.substitute(dict(zip(definition.variables, index, strict=True))))
        if scalar is None:
            return
        store = Store(tensor, index, scalar)
        if is_per_row:
            self.row_stores.append(store)
        else:
            self.stores.append((self._level(scalar), store))
        self.roots.append(tensor)

    def _is_related(self, tensor: Tensor) -> bool:
        """Whether it needs a reduction of the group, or the group computes it anyway."""
        if self.fuser.needs(tensor) & set(self.roots):
            return True
        return any(tensor in self._inlined_by(reduction.tensor) for reduction in self.reductions)

    def _inlined_by(self, tensor: Tensor) -> set[Tensor]:
        found: set[Tensor] = set()
        pending = [tensor]
        while pending:
            for read in self.fuser._reads(pending.pop()):
                is_inlined = isinstance(self.fuser.definitions[read], Pointwise) and read not in self.fuser.scheduled
                if is_inlined and read not in found:
                    found.add(read)
                    pending.append(read)
        return found

    def _expanded(self, scalar: Scalar) -> Scalar | None:
        """Over this group's coordinates, when each of its reductions is read in its own row."""
        local = frozenset(reduction.tensor for reduction in self.reductions)
        try:
            expanded = self.fuser.expand(scalar, local)
        except NotReadyError:
            return None
        for access in accesses(expanded):
            if access.tensor in local and not self._is_own_row(access):
                return None
        return rewrite(expanded, lambda access: self._own_row(access) if access.tensor in local else access)

    def _own_row(self, access: Access) -> Scalar:
        return Access(access.tensor, row_index(as_index(self.space.row), self.space.shape("o"), access.tensor))

    def _is_own_row(self, access: Access) -> bool:
        flat = ravel(access.index, access.tensor.shape)
        return flat == as_index(self.space.row) or self.space.row.extent.constant == 1

    def _level(self, scalar: Scalar) -> int:
        return max((self.levels[a.tensor] for a in accesses(scalar) if a.tensor in self.levels), default=0)


def _are_cheap(operations: Sequence[Operation]) -> bool:
    return all(operation.name in ("cast", "mul", "add", "sub", "neg") for operation in operations)


@dataclass(frozen=True)
class _Replacement:
    """Accesses to a tensor become one access."""

    tensor: Tensor
    access: Access

    def __call__(self, access: Access) -> Scalar:
        return self.access if access.tensor is self.tensor else access


def _does_anything(group: Group) -> bool:
    """Whether it writes memory that is read or returned."""
    match group:
        case ElementwiseGroup() | ContractionGroup():
            return bool(group.stores)
        case RowGroup():
            return bool(group.stores or group.row_stores or any(entry.stored for entry in group.reductions))
    return True


def row_index(row: Index, row_shape: Sequence[Index], tensor: Tensor) -> tuple[Index, ...]:
    """Where the result of a row lies in a tensor that has one element per row."""
    return reshape(unravel_safe(row, row_shape), row_shape, tensor.shape)


def pattern_of(definition: Reduction) -> tuple[tuple[str, Index], ...]:
    """The runs of outer and reduced dims of a reduction, in the order of memory."""
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


def unravel_safe(flat: Index, shape: Sequence[Index]) -> tuple[Index, ...]:
    """`unravel`, with 0 for every dim of size 1."""
    kept = [size for size in shape if size.constant != 1]
    positions = iter(unravel(flat, kept))
    return tuple(as_index(0) if size.constant == 1 else next(positions) for size in shape)


def unravel_like(flat: Index, seed_shape: Sequence[Index], shape: Sequence[Index]) -> tuple[Index, ...]:
    """The index at flat position of `shape`, through `seed_shape` where the two differ."""
    if tuple(seed_shape) == tuple(shape):
        return unravel_safe(flat, shape)
    return reshape(unravel_safe(flat, seed_shape), seed_shape, shape)


def _substituted(index: Index, replacements: Mapping[Variable, Index]) -> Index:
    from kernel_lsp.generate.index import substitute

    return substitute(index, replacements)


def _reads_only_at(scalar: Scalar, tensor: Tensor, at: tuple[Index, ...]) -> bool:
    flat = ravel(at, tensor.shape)
    return all(access.tensor is not tensor or ravel(access.index, tensor.shape) == flat for access in accesses(scalar))


def _scalars_of(definition: Definition) -> list[Scalar]:
    match definition:
        case Pointwise(_, body) | Reduction(body=body) | Scan(body=body):
            return [body]
        case Scatter():
            carriers: list[Scalar] = [IndexValue(index) for index in definition.index]
            optional = [scalar for scalar in (definition.base, definition.mask) if scalar is not None]
            return [definition.body, *carriers, *optional]
        case LibraryResult():
            return [Access(operand, [as_index(0)] * len(operand.shape)) for operand in _operands_of(definition)]
    return []


def _operands_of(definition: Definition) -> list[Tensor]:
    """The tensors that a library call needs in memory."""
    if not isinstance(definition, LibraryResult):
        return []
    return [argument for argument in definition.call.arguments if isinstance(argument, Tensor)]


def _scalars_of_group(group: Group) -> list[Scalar]:
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
            return _scalars_of(LibraryResult(group.call))
