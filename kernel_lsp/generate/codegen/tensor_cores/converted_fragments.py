"""Fragments of a factor in 16 bits whose tile has bytes: quantized weights are converted when a warp reads them.

So their memory is read once, and nothing is written back.
"""

from __future__ import annotations

from kernel_lsp.generate.codegen.elements.packs import pack_along
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, Text, loaded, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import Operand
from kernel_lsp.generate.ir.scalar import Access, accesses


class ConvertedFragment:
    """Computes the right fragments of a warp. What a column's elements have in common is read before all steps."""

    def __init__(self, scope: Scope, operand: Operand, limit: str) -> None:
        assert operand.read is not None
        found = pack_along(operand.scalar, operand.k, 2)
        assert found is not None, "only factors over pairs of products are converted"
        self.operand, self.read = operand, operand.read
        self.packing, self.scalar = found
        self._limit = limit
        self._of_column = self._declare_columns(scope)

    def _declare_columns(self, scope: Scope) -> dict[Access, Text]:
        """Declare what each of a thread's columns has at all products."""
        own = (access for access in accesses(self.operand.scalar) if self.operand.k not in access.variables)
        reads = sorted(set(own), key=lambda access: (access.tensor.serial, access.digest))
        if not reads:
            return {}
        names = {access: scope.names.take(f"{scope.kernel.local_name(access.tensor)}_value") for access in reads}
        for access, name in names.items():
            scope.line(f"{COMPUTE_TYPE[access.dtype]} {name}[WN / 8];  // of a thread's columns")
        with scope.unroll("for (int j = 0; j < WN / 8; ++j)") as columns:
            columns.line(f"const {scope.kernel.index_type} n = {self._column('j')};")
            columns.define(self.operand.along, "n")
            for access, name in names.items():
                columns.line(f"{name}[j] = {columns.value(access).text};")
        return {access: Text(f"{name}[j + c / 2]", ATOM) for access, name in names.items()}

    def _column(self, j: str) -> str:
        """Return a thread's column; those past the end repeat the last one, and are not written."""
        place = f"n0 + warp_n + {j} * 8 + lane / 4"
        return f"min({place}, {self._limit} - 1)" if self._limit else place

    def write(self, scope: Scope, step: str) -> None:
        """Write the fragments of 16 columns, from j on, at the products from k on of a step."""
        type_, kernel = self.operand.dtype.cuda_type, scope.kernel
        kernel.use("packs")
        with scope.unroll("for (int c = 0; c < 4; ++c)") as words:
            words.line("const int col = warp_n + (j + c / 2) * 8 + lane / 4, row = k + c % 2 * 8 + lane % 4 * 2;")
            raw = f"Pack<{self.read.dtype.cuda_type}, 2>"
            words.line(f"const {raw} two = *packs<2>(&{self.operand.tile}[stage][col][row]);")
            if self._varies_with_products:
                words.line(f"const {kernel.index_type} n = {self._column('(j + c / 2)')};")
                words.define(self.operand.along, "n")
                words.define(self.packing.pack, Text(f"(({step} * TK + row) / 2)", ATOM))
            for access, text in self._of_column.items():
                words.bind(access, text)
            words.line(f"Pack<{type_}, 2> pair;")
            with words.unroll("for (int v = 0; v < 2; ++v)") as lanes:
                lanes.define(self.packing.lane, "v")
                lanes.bind(self._read_in_pair, loaded("two.item[v]", self.read.dtype))
                value = lanes.value(self.scalar)
                lanes.line(f"pair.item[v] = {stored(value, self.scalar.dtype, self.operand.dtype)};")
            words.line("right[j + c / 2][c % 2] = *reinterpret_cast<const unsigned*>(&pair);")

    @property
    def _varies_with_products(self) -> bool:
        """Return True for scales of groups of products."""
        others = (access for access in accesses(self.operand.scalar) if access.tensor is not self.read.tensor)
        return any(self.operand.k in access.variables for access in others)

    @property
    def _read_in_pair(self) -> Access:
        return next(access for access in accesses(self.scalar) if access.tensor is self.read.tensor)
