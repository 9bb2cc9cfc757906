"""Cache of a row in registers: the first pass loads elements that several passes read."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.elements.packs import Packing, find_packed
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.rows.row_reads import first_reads, load_row
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, accesses_outside_loops

HELD_TYPES = (DType.F32, DType.F16, DType.BF16)


def may_keep(access: Access, group: RowGroup) -> bool:
    """Return True if a thread may keep the element in a register: under a mask, too, where rows lie side by side, such
    as those of parts of any length."""
    is_plain = access.dtype in (DType.F32, DType.F64) and not group.is_column_contiguous
    return access.mask is None or is_plain


class RowCache:
    """One array per cached read; none where the schedule caches no row. Where blocks take several rows, caches that
    load the next row meanwhile override `begin_rows` and what follows it."""

    pack_type = "int"
    """The type of a pack's place in its row."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, packing: Packing) -> None:
        self.kernel, self.group, self.schedule, self.packing = kernel, group, schedule, packing
        self._arrays: dict[bytes, str] = {}
        self._filled: set[bytes] = set()
        self._first: dict[bytes, str] = {}
        self.fills_first_pass = False

    @property
    def n_bytes(self) -> int:
        """Return the bytes of dynamic shared memory per block."""
        return 0

    def begin_rows(self, scope: Scope, row: str, n_items: int, lane: str, limit: str) -> None:
        """Start to load the first `row`: `n_items` packs for a thread at `lane`, of `limit` packs in all."""

    def open_row(self, scope: Scope, condition: str, next_row: str) -> None:
        """Begin a row: the one after it is `next_row`, if `condition` holds."""

    def begin_exchange(self, scope: Scope) -> None:
        """Use the time in which blocks wait for each other's last partial results."""

    def begin_last(self, scope: Scope) -> None:
        """Begin the last pass over a row."""

    def end_pack(self, scope: Scope) -> None:
        """End a pack, whose results are stored."""

    def end_pass(self, scope: Scope) -> None:
        """End a pass over a row."""

    def end_row(self, scope: Scope) -> None:
        """End a row."""

    def read_first(self, scope: Scope, lane: str) -> None:
        """Load what a row reads once and the thread's first element of it."""
        column, flat = self.group.column, self.packing.flat
        names = load_row(scope, self.group, lane)
        along = first_reads(scope, self.group)[1]
        self._first = {a.substitute({column: flat}).digest: names[a.digest] for a in along if a.digest in names}

    def declare(self, scope: Scope, n_items: int) -> None:
        """Declare an array of `n_items` for every read of the whole row that several passes make, once."""
        self._declare(scope, n_items, self.shared_reads())

    def declare_weights(self, scope: Scope, n_items: int) -> list[Access]:
        """Declare an array for every read that all rows make alike, where the cache keeps those; return these reads."""
        return []

    def _weights(self) -> list[Access]:
        """Return the reads along the row that all rows make alike, each once."""
        found = self._along_row([scalar for _, scalar in self._entries()])
        return list({access.digest: access for access in found if self.group.row not in access.variables}.values())

    def _declare(self, scope: Scope, n_items: int, reads: Sequence[Access]) -> None:
        for access in reads:
            if access.digest in self._arrays:
                continue
            self.kernel.pointer(access.tensor)
            name = scope.names.take(f"{self.kernel.local_name(access.tensor)}_row")
            type_ = self._type(access) if self.schedule.vector > 1 else access.dtype.cuda_type
            scope.line(f"{type_} {name}[{n_items}];")
            self._arrays[access.digest] = name

    def _type(self, access: Access) -> str:
        """Return the type of a pack."""
        self.kernel.use("packs")
        return f"Pack<{access.dtype.cuda_type}, {self.schedule.vector}>"

    def reads_of(self, scalars: Sequence[Scalar]) -> list[Access]:
        """Return the reads of the scalars that have an array, or whose first element is loaded."""
        if self._first:
            return [access for access in accesses(*scalars) if access.digest in self._first]
        return [access for access in self._cacheable(scalars) if access.digest in self._arrays]

    def is_filled(self, access: Access) -> bool:
        """Return True if the array of the access is loaded."""
        return access.digest in self._filled

    def load(self, scope: Scope, access: Access) -> str:
        """Return the location of the access in this pass: a register of the row's array, or a pack that was just
        loaded."""
        if access.digest in self._first:
            return self._load_after_first(scope, access)
        array = self._arrays.get(access.digest)
        if array is None:
            return self.packing.load(scope, access)
        if access.digest not in self._filled:
            self._filled.add(access.digest)
            scope.line(f"{array}[item] = {self._source(scope, access)};")
        return f"{array}[item]"

    @property
    def holds_loads(self) -> bool:
        """Return True if the compiler must be kept from moving each load to its first use: between divisions, which
        wait for it, loads are not in flight together. Gradients of an L2 norm over 128 channels took 110.8 us on an
        H200 so, 62.3 us with a branch around each load."""
        are_held = all(read.dtype in HELD_TYPES for read in self.shared_reads())
        return not self.group.is_column_contiguous and are_held

    def hold(self, scope: Scope, arrays: Sequence[str], n_items: int) -> None:
        """Have the loads of all items come before what follows."""
        helper = self.kernel.use("hold_load")
        with scope.unroll(f"for (int item = 0; item < {n_items}; ++item)") as inner:
            for array in arrays:
                inner.line(f"{helper}({array});")

    def _load_after_first(self, scope: Scope, access: Access) -> str:
        """Return the location of an element whose first one is loaded; threads with more read the others again."""
        first, n_columns = self._first[access.digest], self.group.column.extent.constant
        if n_columns is not None and n_columns <= self.schedule.threads:
            return first
        source = f"{self.packing.pack.name} < {self.schedule.threads} ? {first} : {self._source(scope, access)}"
        return scope.declare(f"{self.kernel.local_name(access.tensor)}_value", access.dtype.cuda_type, source)

    def _source(self, scope: Scope, access: Access) -> str:
        if access.mask is not None:
            return scope.value(access).text
        return self.packing.memory(scope, access)

    def shared_reads(self) -> list[Access]:
        """Return the reads of elements that differ from row to row which more than one pass makes, or the first one
        where that keeps values instead."""
        return self._reads_of_passes(2)

    def _reads_of_passes(self, n_passes: int) -> list[Access]:
        """Return the reads of elements that differ from row to row which at least `n_passes` make."""
        passes: dict[bytes, set[int]] = {}
        found: dict[bytes, Access] = {}
        entries = self._entries()
        for level, scalar in entries:
            for access in self._cacheable([scalar]):
                passes.setdefault(access.digest, set()).add(level)
                found[access.digest] = access
        first = min((level for level, _ in entries), default=0) if self.fills_first_pass else -1
        shared = [
            access for digest, access in found.items() if len(passes[digest]) >= n_passes or first in passes[digest]
        ]
        return sorted(shared, key=lambda access: (access.tensor.serial, access.digest))

    def _entries(self) -> list[tuple[int, Scalar]]:
        """Return what each pass computes, over packs."""
        entries = [(entry.level, entry.scalar) for entry in self.group.reductions]
        entries += [(level, store.scalar) for level, store in self.group.stores]
        return [(level, scalar.substitute({self.group.column: self.packing.flat})) for level, scalar in entries]

    def _cacheable(self, scalars: Sequence[Scalar]) -> list[Access]:
        """Return the reads along the row of elements that differ from row to row."""
        row = self.group.row
        return [a for a in self._along_row(scalars) if row in a.variables or row.extent.constant == 1]

    def _along_row(self, scalars: Sequence[Scalar]) -> list[Access]:
        if not self.schedule.cached:
            return []
        if self.schedule.vector > 1:
            found = find_packed(scalars, self.packing)
        else:
            found = [access for access in accesses_outside_loops(*scalars) if may_keep(access, self.group)]
        return [
            access
            for access in found
            if access.tensor in self.kernel.tensor_names and self.packing.pack in access.variables
        ]
