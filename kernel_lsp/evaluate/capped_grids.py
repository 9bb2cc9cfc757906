"""Grids that a plan limits: whether so many blocks still do all of a larger problem.

`min(ceil_div(N, 256), 65535)` blocks are enough for a kernel that goes on in steps of the grid; one that does not
leaves the rest undone. Where the limit begins may be too far away to compute anything there. So a few blocks are run
there on zeros, and what they write is compared with what as many of the captured sizes' blocks write of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.expression import Call, parts
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, Launch, LibraryStep, Operation
from kernel_lsp.core.verdict import Built, CaseResult, Mismatch
from kernel_lsp.evaluate.cases import OperationKind, Sizes, captured_sizes, is_usable
from kernel_lsp.evaluate.cpu import CpuDevice, Limits
from kernel_lsp.evaluate.prepare import Prepared
from kernel_lsp.evaluate.progress import Plan
from kernel_lsp.ptx.executor import PtxExecutor

MAX_ELEMENTS = 1 << 30
"""Of all inputs and outputs: four gigabytes of floats, of which only what the blocks touch is ever in memory."""
N_BLOCKS = 12
LEAST_SHARE = 0.7
"""Of what a block of the captured sizes writes. Half of it is left undone where there is twice as much to do."""


async def left_undone(
    device: CpuDevice, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, limits: Limits
) -> Mismatch | None:
    """A mismatch when a block beyond the limit of a grid writes less of its share than one at the captured sizes."""
    case, bound = plan[0]
    beyond = beyond_limits(prepared, case.operation, [dict(each) for each in dict.fromkeys(c.sizes for c, _ in plan)])
    if beyond is None or not executor.is_alive:
        return None
    here = await device.written_shares(executor, built, bound, N_BLOCKS, limits, case.seed)
    there = None if here is None else await device.written_shares(executor, built, beyond, N_BLOCKS, limits, case.seed)
    if here is None or there is None:
        return None
    lacking = [name for name, share in here.items() if there[name] < LEAST_SHARE * share]
    if not lacking:
        return None
    launch = next(step for step in beyond.steps if isinstance(step, BoundLaunch))
    dims = ", ".join(f"{name} = {size:,}" for name, size in beyond.dims.items())
    return Mismatch(
        message=f"with {dims} the plan limits the grid to {launch.n_blocks:,} blocks, which leave a part of "
        f"'{lacking[0]}' unwritten: go on in steps of the whole grid, or exclude such sizes with '// where:'",
        failed=CaseResult(
            operation=beyond.name,
            family="zeros",
            shapes={tensor.name: tensor.shape for tensor in beyond.tensors if tensor.role == "input"},
            n_blocks=launch.n_blocks,
            n_blocks_run=N_BLOCKS,
            errors=(),
        ),
    )


def beyond_limits(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes]) -> BoundOperation | None:
    """The operation at twice the first sizes at which a grid stops growing, where it grows at all of the `known` ones;
    None where there are none within reach, and for operations of several launches, which depend on each other."""
    if not _is_one_limited_launch(prepared.operation(kind)):
        return None
    captured = captured_sizes(prepared.task)
    seen = {prepared.decisions(kind, sizes) for sizes in (captured, *known)}
    for symbol in prepared.task.symbols:
        sizes = _doubled(captured, symbol.name)
        while _is_possible(prepared, kind, sizes) and prepared.decisions(kind, sizes) in seen:
            sizes = _doubled(sizes, symbol.name)
        twice = _doubled(sizes, symbol.name)
        if _is_possible(prepared, kind, twice):
            return prepared.bind(kind, twice)
    return None


# --- below


def _is_one_limited_launch(operation: Operation) -> bool:
    launches = [step for step in operation.steps if isinstance(step, Launch)]
    if len(launches) != 1 or any(isinstance(step, LibraryStep) for step in operation.steps):
        return False
    return any(isinstance(part, Call) and part.function == "min" for size in launches[0].grid for part in parts(size))


def _doubled(sizes: Sizes, symbol: str) -> Sizes:
    return {**sizes, symbol: 2 * sizes[symbol]}


def _is_possible(prepared: Prepared, kind: OperationKind, sizes: Sizes) -> bool:
    if any(symbol.maximum is not None and sizes[symbol.name] > symbol.maximum for symbol in prepared.task.symbols):
        return False
    if not is_usable(prepared.task, kind, sizes, MAX_ELEMENTS, or_as_captured=False):
        return False
    return prepared.can_bind(kind, sizes)
