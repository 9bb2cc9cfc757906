"""A kernel by `wgmma` whose first warps copy and split tiles, while the others multiply."""

from __future__ import annotations

from abc import abstractmethod

from kernel_lsp.generate.codegen.attention.attention_tiles import TileRenderer
from kernel_lsp.generate.codegen.kernel import RenderedKernel, rendered
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scope import Scope

MAX_SHARED_BYTES = 227 << 10
CHUNK = 32
"""Terms in a row of 128 swizzled bytes."""
REGISTERS = {4: (232, 40), 8: (208, 40)}
"""Registers per thread that multiplies, and that copies, by the number of warps that copy, where 8 multiply: together
at most those that a block starts with, 168 or 128 a thread. Threads would wait for more for ever."""
COPYING_WARPS = 8
"""Warps that copy and split tiles by default: with 4 the others wait for them. Causal (4, 32, 2048, 128) took 2362 us
on an H200 with 4, and 1925 with 8."""
WARPS = 8
MAX_PRODUCTS = 2
"""Maximum products that give the columns of a result, whose sums stay in registers."""


class WarpgroupRenderer(TileRenderer):
    """Renders what kernels of specialized warps share. Tiles are copied by the first `schedule.copying` warps."""

    @property
    def _n_copying(self) -> int:
        return self.schedule.copying * WARP

    def _change_registers(self, scope: Scope, *, is_copying: bool) -> None:
        """Move registers from the threads that copy to those that multiply."""
        change = "dec" if is_copying else "inc"
        scope.line(f"{change}_registers<{REGISTERS[self.schedule.copying][is_copying]}>();")

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel."""
        scope = self.scope
        self._declare()
        for helper in ("meet", "arrive", "dec_registers", "inc_registers", "commit_copies", "wait_for_copies"):
            self.kernel.use(helper)
        with scope.open("if (threadIdx.x < COPYING)") as copying:
            self._write_copying(copying)
        scope.lines.pop()
        self.scope = scope.open("} else")
        self._write_multiplying()
        self.scope.close()
        self.scope = scope
        grid, block = (self._grid(),), (self.n_threads,)
        # One resident block: otherwise ptxas does not know how many registers `setmaxnreg` may move.
        return rendered(self.kernel, comment, scope.lines, grid, block, min_blocks=1, dynamic_bytes=self._n_bytes)

    @property
    @abstractmethod
    def _n_bytes(self) -> int:
        """Return the bytes of shared memory."""

    @abstractmethod
    def _declare(self) -> None:
        """Declare constants, tiles in shared memory, and what a block owns."""

    @abstractmethod
    def _write_copying(self, scope: Scope) -> None:
        """Write what the first warps do."""

    @abstractmethod
    def _write_multiplying(self) -> None:
        """Write what the other warps do."""
