"""Compare values at one very large dim at a time, on the executor: more rows than 16 bits count, rows of a million
elements.

At still larger sizes, written shares detect missing writes. Missing reads show in values alone: a sum of a fixed number
of terms is written as completely as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.core.verdict import Crashed, Mismatch
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.verify.cpu.prepared import Limits, LoadedKernel
from kernel_lsp.verify.devices.device import CaseRun
from kernel_lsp.verify.model.cases import (
    LATE_EXTREMES,
    Case,
    OperationKind,
    Sizes,
    graph_of,
    seeded,
)
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.finder import Budget, finder_of, n_largest

MANY_ROWS = 70_001
"""Rows, more than 16 bits count."""
LONG_ROW = 1_310_003
"""Elements of a row, a quarter more than two levels of 1,024 threads cover."""
LONG_SUM = 4_700_003
"""Elements of a task with one symbol, an eighth more than 1,024 partial sums of 4,096 each."""
BESIDE = {MANY_ROWS: 3, LONG_ROW: 1, LONG_SUM: 1}
"""Size of the other symbols."""
MAX_SYMBOLS = 2
"""Maximum symbols of a task whose number of rows is tested."""
MAX_ELEMENTS = 6_000_000
"""Maximum elements of all inputs and outputs, and of any intermediate."""
MAX_OPERATIONS, MAX_BYTES = 300_000_000, 300_000_000
"""Maximum work of PyTorch: some tenths of a second on a CPU. The byte limit also holds for a kernel's own tensors with
scratch."""
MAX_INSTRUCTIONS, MAX_SUM_INSTRUCTIONS = 30_000_000, 80_000_000
"""Maximum instructions of a kernel, and of one that sums all of a single dim: 0.2 s, and 0.5 s. A kernel that needs
more is not tested."""
DEADLINE_S = 15.0
"""Seconds on a busy machine; the instructions are the bound."""
LEAST_ERROR = 0.05
"""Minimum relative error of a whole output that is a failure. Omitted terms exceed it; a serial sum of a million terms,
which is accepted here, does not."""


async def wrong_at_vast_sizes(kernel: LoadedKernel) -> Mismatch | Crashed | None:
    """Return a mismatch when an output is incorrect at a very large size. None also where the test would take too
    long."""
    prepared, direction = kernel.prepared, kernel.direction
    for sizes in vast_sizes_of_one(prepared, direction, kernel.known):
        if not kernel.code.is_alive or not _is_cheap(prepared.task, direction, sizes, kernel.gpu):
            continue
        bound, n_allowed = prepared.bind(direction, sizes), _n_allowed(sizes)
        limits = Limits(0, n_allowed, DEADLINE_S, max_thread_instructions=n_allowed)
        # Before PyTorch computes the reference.
        if not kernel.has_kernels_of(bound) or not await kernel.code.ends(bound, limits):
            continue
        case = Case(direction, tuple(sorted(sizes.items())), LATE_EXTREMES, 0, "random")
        case = seeded(case, kernel.plan[0][0].seed, "large values")
        await kernel.store.make_without_turn(case)
        outcome = await kernel.run(case, bound, limits)
        if isinstance(outcome, Crashed) or (isinstance(outcome, Mismatch) and is_gross(outcome)):
            return outcome
        if isinstance(outcome, CaseRun):
            kernel.progress.cases.append(outcome.result)
            kernel.progress.add_findings(outcome.findings)
    return None


def vast_sizes_of_one(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield, for each relevant symbol, sizes inside the contract with that symbol very large and the others small.
    Skips sizes that one of the `known` ones reaches."""
    for symbol in prepared.task.symbols:
        for n_wanted in _wanted(prepared.task, kind, symbol.name):
            sizes = _with_one_vast(prepared, kind, symbol, n_wanted)
            if any(each[symbol.name] >= n_wanted for each in known):
                break
            if sizes is not None:
                yield sizes
                break


def is_gross(mismatch: Mismatch) -> bool:
    """Check whether the mismatch exceeds rounding errors."""
    errors = mismatch.failed.errors
    return not errors or any(_is_gross(error.relative_l2) or error.found is None for error in errors if error.n_wrong)


def _wanted(task: Task, kind: OperationKind, symbol: str) -> tuple[int, ...]:
    """Return the wanted sizes of a symbol, in order of preference: larger for a reduced dim or a row length than for a
    number of rows. Empty for an unreduced dim of three or more symbols, which shares test."""
    outputs = [output.type for output in graph_of(task, kind).outputs if output.type is not None]
    is_summed = not any(symbol in dim for type_ in outputs for dim in type_.shape)
    if is_summed:
        return (LONG_SUM, LONG_ROW) if len(task.symbols) == 1 else (LONG_ROW,)
    if len(task.symbols) > MAX_SYMBOLS:
        return ()
    return (LONG_ROW if symbol == task.symbols[-1].name else MANY_ROWS,)


def _with_one_vast(prepared: Prepared, kind: OperationKind, symbol: Symbol, n_wanted: int) -> Sizes | None:
    finder = finder_of(prepared, kind)
    for sizes in finder.aligned_with([symbol], n_wanted, BESIDE[n_wanted]):
        is_small = sizes[symbol.name] >= n_wanted and finder.fits(sizes, Budget(MAX_ELEMENTS))
        if is_small and prepared.can_bind(kind, sizes):
            n_bytes = sum(tensor.n_bytes for tensor in prepared.bind(kind, sizes).tensors)
            return sizes if n_bytes <= MAX_BYTES else None
    return None


def _n_allowed(sizes: Sizes) -> int:
    return MAX_SUM_INSTRUCTIONS if len(sizes) == 1 else MAX_INSTRUCTIONS


def _is_cheap(task: Task, kind: OperationKind, sizes: Sizes, gpu: GpuSpec) -> bool:
    """Check whether PyTorch needs at most some tenths of a second."""
    graph = graph_of(task, kind)
    with suppress(ExpressionError):
        if n_largest(graph, sizes) <= MAX_ELEMENTS:
            kernels = eager_run(graph, sizes, gpu).kernels
            n_operations, n_bytes = sum(k.n_operations for k in kernels), sum(k.n_bytes for k in kernels)
            return n_operations <= MAX_OPERATIONS and n_bytes <= MAX_BYTES
    return False


def _is_gross(relative: float) -> bool:
    return not math.isfinite(relative) or relative > LEAST_ERROR
