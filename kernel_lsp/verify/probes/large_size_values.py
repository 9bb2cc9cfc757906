"""Real values at one vast dim at a time, on the executor: more rows than 16 bits count, rows of a million elements.

What a kernel writes shows in shares at sizes farther away than that; what it reads shows in values alone: a sum of a
fixed number of terms is written as completely as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.core.verdict import Built, Crashed, Mismatch
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import PtxExecutor
from kernel_lsp.verify.cpu.device import CaseRun, CpuDevice, Limits
from kernel_lsp.verify.model.cases import (
    ALIGNMENTS,
    LATE_EXTREMES,
    OperationKind,
    Sizes,
    captured_sizes,
    clamped,
    graph_of,
    is_usable,
    vast_cases,
)
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.wide_sizes import n_largest

MANY_ROWS = 70_001
"""More than 16 bits count."""
LONG_ROW = 1_310_003
"""A quarter more than two levels of 1,024 threads take."""
LONG_SUM = 4_700_003
"""Of all elements of a task with one symbol: an eighth more than 1,024 partial sums of 4,096 each."""
BESIDE = {MANY_ROWS: 3, LONG_ROW: 1, LONG_SUM: 1}
"""What the other symbols are."""
MAX_SYMBOLS = 2
"""Of a task whose rows are looked at."""
MAX_ELEMENTS = 6_000_000
"""Of all inputs and outputs, and of any tensor in between."""
MAX_OPERATIONS, MAX_BYTES = 300_000_000, 300_000_000
"""Of PyTorch: some tenths of a second on a CPU. A kernel's own tensors, its scratch among them, have no more bytes."""
MAX_INSTRUCTIONS, MAX_SUM_INSTRUCTIONS = 30_000_000, 80_000_000
"""Of a kernel, and of one that adds up all of a single dim: a fifth of a second, and half a second. One that needs more
than that passes without."""
DEADLINE_S = 15.0
"""On a busy machine; the instructions are the bound."""
LEAST_ERROR = 0.05
"""Relative, of a whole output: what is left out shows as more, and adding up a million terms one after the other, which
is not to be refused here, as less."""


async def wrong_at_vast_sizes(
    device: CpuDevice,
    executor: PtxExecutor,
    built: Built,
    prepared: Prepared,
    plan: Plan,
    gpu: GpuSpec,
    progress: Progress,
) -> Mismatch | Crashed | None:
    """A mismatch when an output is another one at a vast size. None also where that would take too long to tell."""
    task, kind, seed = prepared.task, plan[0][0].operation, plan[0][0].seed
    known = [dict(sizes) for sizes in dict.fromkeys(case.sizes for case, _ in plan)]
    for sizes in vast_sizes_of_one(prepared, kind, known):
        if not executor.is_alive or not _is_cheap(task, kind, sizes, gpu):
            continue
        bound, n_allowed = prepared.bind(kind, sizes), _n_allowed(sizes)
        limits = Limits(0, n_allowed, DEADLINE_S, max_thread_instructions=n_allowed)
        if not await device.ends(executor, built, bound, limits):  # before PyTorch is asked
            continue
        (case,) = vast_cases(kind, [sizes], captured_sizes(task), seed)
        case = replace(case, family=LATE_EXTREMES)
        await device.make_aside(case)
        outcome = await device.run_case(executor, built, bound, case, None, limits)
        if isinstance(outcome, Crashed) or (isinstance(outcome, Mismatch) and is_gross(outcome)):
            return outcome
        if isinstance(outcome, CaseRun):
            progress.cases.append(outcome.result)
            progress.add_findings(outcome.findings)
    return None


def vast_sizes_of_one(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes]) -> Iterator[Sizes]:
    """For each symbol that may matter sizes inside the contract at which it is vast and the others are small, unless it
    is as large at one of the `known` ones."""
    for symbol in prepared.task.symbols:
        for n_wanted in _wanted(prepared.task, kind, symbol.name):
            sizes = _with_one_vast(prepared, kind, symbol, n_wanted)
            if any(each[symbol.name] >= n_wanted for each in known):
                break
            if sizes is not None:
                yield sizes
                break


def is_gross(mismatch: Mismatch) -> bool:
    """Whether it is more than what roundings come to."""
    errors = mismatch.failed.errors
    return not errors or any(_is_gross(error.relative_l2) or error.found is None for error in errors if error.n_wrong)


# --- below


def _wanted(task: Task, kind: OperationKind, symbol: str) -> tuple[int, ...]:
    """How large a symbol should be, or else: more where it is added up, or the length of rows, than where it is their
    number. Empty where three dims or more may grow and this one is not added up: what is written shows in shares."""
    outputs = [output.type for output in graph_of(task, kind).outputs if output.type is not None]
    is_summed = not any(symbol in dim for type_ in outputs for dim in type_.shape)
    if is_summed:
        return (LONG_SUM, LONG_ROW) if len(task.symbols) == 1 else (LONG_ROW,)
    if len(task.symbols) > MAX_SYMBOLS:
        return ()
    return (LONG_ROW if symbol == task.symbols[-1].name else MANY_ROWS,)


def _with_one_vast(prepared: Prepared, kind: OperationKind, symbol: Symbol, n_wanted: int) -> Sizes | None:
    for alignment in ALIGNMENTS:
        sizes = {
            each.name: clamped(each, n_wanted if each == symbol else BESIDE[n_wanted], alignment)
            for each in prepared.task.symbols
        }
        is_small = is_usable(prepared.task, kind, sizes, MAX_ELEMENTS, or_as_captured=False)
        if sizes[symbol.name] >= n_wanted and is_small and prepared.can_bind(kind, sizes):
            n_bytes = sum(tensor.n_bytes for tensor in prepared.bind(kind, sizes).tensors)
            return sizes if n_bytes <= MAX_BYTES else None
    return None


def _n_allowed(sizes: Sizes) -> int:
    return MAX_SUM_INSTRUCTIONS if len(sizes) == 1 else MAX_INSTRUCTIONS


def _is_cheap(task: Task, kind: OperationKind, sizes: Sizes, gpu: GpuSpec) -> bool:
    """Whether PyTorch needs some tenths of a second."""
    graph = graph_of(task, kind)
    with suppress(ExpressionError):
        if n_largest(graph, sizes) <= MAX_ELEMENTS:
            kernels = eager_run(graph, sizes, gpu).kernels
            n_operations, n_bytes = sum(k.n_operations for k in kernels), sum(k.n_bytes for k in kernels)
            return n_operations <= MAX_OPERATIONS and n_bytes <= MAX_BYTES
    return False


def _is_gross(relative: float) -> bool:
    return not math.isfinite(relative) or relative > LEAST_ERROR
