"""Detect kernels that number all threads of their grid in 32 bits, as `blockIdx.x * blockDim.x + threadIdx.x` does.

CUDA's own examples do so, and most kernels with one warp per row. Their grids cannot be larger than that number.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.toolchain.integrity.ptx_text import Statement

MAX_THREADS = 1 << 31
"""Maximum threads of a grid with `int` thread numbers."""
PRODUCTS, SHIFT = ("mul.lo.", "mad.lo."), "shl.b32"
BLOCK, BLOCK_SIZE = "%ctaid.", "%ntid."


def numbers_its_threads(statements: Iterable[Statement], symbol: str, launch: BoundLaunch) -> bool:
    """Check whether the kernel multiplies the block index by the block size in 32 bits."""
    sizes = {launch.n_threads_per_block, *launch.block} - {1}
    holds: dict[str, str] = {}
    for statement in statements:
        if statement.function != symbol:
            continue
        operands = [operand.strip() for operand in statement.sources.split(",")]
        kinds = {holds.get(operand, operand)[: len(BLOCK)] for operand in operands[:2]}
        if statement.opcode.startswith(("mov.", "cvt.")) and operands[0].startswith((BLOCK, BLOCK_SIZE)):
            holds.update(dict.fromkeys(statement.results, operands[0]))
        elif BLOCK in kinds and statement.opcode.startswith(PRODUCTS) and "32" in statement.opcode:
            others = (operand for operand in operands[:2] if not holds.get(operand, "").startswith(BLOCK))
            if any(holds.get(o, "").startswith(BLOCK_SIZE) or (o.isdigit() and int(o) in sizes) for o in others):
                return True
        elif BLOCK in kinds and statement.opcode == SHIFT and operands[1].isdigit() and 1 << int(operands[1]) in sizes:
            return True
    return False
