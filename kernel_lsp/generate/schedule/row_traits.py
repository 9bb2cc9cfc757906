"""Describe the rows of a reduction: their captured sizes, and what each pass reads of them."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.row_cache import may_keep
from kernel_lsp.generate.codegen.rows.row_schedule import (
    MAX_CLUSTER,
    RowSchedule,
    can_pack_rows,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs, n_passes
from kernel_lsp.generate.ir.scalar import Access, Operation, accesses, nodes
from kernel_lsp.generate.ir.sizes import divides
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.row_limits import (
    LARGE_ROW_BYTES,
    MAX_KEPT_EXPONENTIALS,
    MIN_READ_ONCE_COLUMNS,
    NARROW_L2_BYTES,
)


@dataclass(frozen=True)
class RowTraits:
    """The rows of one group at their captured sizes."""

    workload: Workload
    group: RowGroup

    @property
    def widest(self) -> int:
        """Return the bytes of the widest element of a row."""
        return max((access.dtype.itemsize for access in self._varying()), default=4)

    def widths(self) -> list[int]:
        """Return the numbers of neighbouring columns per load."""
        size = self.n_columns
        if not self.group.is_column_contiguous:
            size = self.n_rows if can_pack_rows(self.group) else 1
        return [1, *(width for width in (2, 4, 8) if size and size % width == 0 and self._fits_a_pack(width))]

    def _fits_a_pack(self, width: int) -> bool:
        return any(access.dtype.itemsize * width <= MAX_PACK_BYTES for access in self._accesses())

    def is_read_again_from_l2(self) -> bool:
        """Return True for active rows of 16 bits that stay in L2, which their blocks read again in less time."""
        row_bytes = self.n_columns * self.kept_bytes()
        n_bytes = row_bytes * min(self.n_rows, self.workload.n_multiprocessors)
        return n_bytes <= NARROW_L2_BYTES and all(access.dtype.itemsize == 2 for access in self.kept())

    def can_run(self, blocks: int) -> bool:
        """Return True unless blocks need a cluster and the GPU has none."""
        return blocks > MAX_CLUSTER or self.workload.capability >= HOPPER

    def width(self) -> int:
        """Return 16 bytes' worth of the widest element of a row, where no contract is needed or the row tensors are
        large."""
        in_a_load = (width for width in self.widths() if self.widest * width <= MAX_PACK_BYTES)
        return max((w for w in in_a_load if divides(w, self.group.column.extent) or self.is_large()), default=1)

    @property
    def n_rows(self) -> int:
        return self.workload.size(self.group.row.extent)

    @property
    def n_columns(self) -> int:
        """Return the length of the captured row."""
        return self.workload.size(self.group.column.extent)

    def is_large(self, n_bytes: int = LARGE_ROW_BYTES) -> bool:
        """Return True if a tensor has so many bytes, or would have in 32 bits: loads of 16 bits cost as much."""
        tensors = [access.tensor for access in self._varying() if self.group.row in access.variables]
        sizes = (self.workload.size(tensor.n_elements) * max(tensor.dtype.itemsize, 4) for tensor in tensors)
        return max(sizes, default=0) >= n_bytes

    def is_online_sum(self) -> bool:
        """Return True if one pass over memory reads the row and no result has its length."""
        return bool(find_pairs(self.group)) and not self.group.stores

    def is_plain_sum(self) -> bool:
        """Return True if one pass finds sums alone, without pairs."""
        return not self.group.stores and n_passes(self.group) == 1

    def is_read_once(self) -> bool:
        """Return True if one pass over memory finds everything, where passes over registers would be several."""
        return self.is_online_sum() and n_passes(self.group, online=True) == 1

    def is_long_read_once(self) -> bool:
        return self.n_columns >= MIN_READ_ONCE_COLUMNS and self.is_read_once()

    def takes_exponentials(self) -> bool:
        """Return True if the row's sums need an exponential of each element; a maximum may have been kept."""
        return self.takes("exp")

    def takes(self, name: str) -> bool:
        """Return True if the row's sums need this operation on each element."""
        found = nodes(*(reduction.scalar for reduction in self.group.reductions))
        column = self.group.column
        return any(isinstance(node, Operation) and node.name == name and column in node.variables for node in found)

    def is_long_in_16_bits(self) -> bool:
        """Return True if a thread would keep many exponentials of tensors of 16 bits, which leaves too few registers
        for a second block beside its own."""
        is_narrow = self.takes_exponentials() and all(access.dtype.itemsize == 2 for access in self.kept())
        return is_narrow and bool(self.group.stores) and self.n_columns > MAX_KEPT_EXPONENTIALS

    def _accesses(self) -> list[Access]:
        scalars = [entry.scalar for entry in self.group.reductions] + [store.scalar for _, store in self.group.stores]
        return list(accesses(*scalars))

    def _varying(self) -> list[Access]:
        return [access for access in self._accesses() if self.group.column in access.variables]

    def kept(self) -> list[Access]:
        """Return the reads of the row itself that several passes make, each tensor once."""
        return [access for access, levels in self.levels() if len(levels) > 1]

    def reads_again(self) -> bool:
        """Return True if several passes read several tensors."""
        return n_passes(self.group) > 1 and len(self.kept()) > 1

    def reads_of_row(self) -> list[Access]:
        """Return the reads of the row itself, each tensor once."""
        return [access for access, _ in self.levels()]

    def levels(self, *, with_weights: bool = False) -> list[tuple[Access, set[int]]]:
        """Return the reads of the row itself, or also those that all rows make, with the passes that make them."""
        group = self.group
        levels: dict[object, set[int]] = {}
        found: dict[object, Access] = {}
        entries = [(entry.level, entry.scalar) for entry in group.reductions]
        entries += [(level, store.scalar) for level, store in group.stores]
        entries += [(entry.level, entry.scalar) for entry in group.column_sums]
        for level, scalar in entries:
            for access in accesses(scalar):
                is_row = with_weights or group.row in access.variables or group.row.extent.constant == 1
                if group.column in access.variables and is_row and may_keep(access, group):
                    levels.setdefault(access.digest, set()).add(level)
                    found[access.digest] = access
        return [(access, levels[digest]) for digest, access in found.items()]

    def kept_bytes(self) -> int:
        """Return the bytes per column that a cached schedule keeps."""
        return sum(access.dtype.itemsize for access in self.kept()) or 4

    def kept_per_block(self, schedule: RowSchedule) -> int:
        return -(-self.n_columns // schedule.blocks) * self.kept_bytes()
