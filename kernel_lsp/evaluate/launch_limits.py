"""Launches that a GPU refuses, by what the compiler says of their kernels and by what their plan says of their grids.

The executor knows neither registers nor the sizes that nobody runs: a block whose registers do not fit, and a
cooperative grid that grows with the input until it no longer fits at once, would pass every case here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.verdict import Built, Crashed, KernelFacts
from kernel_lsp.errors import PlanError
from kernel_lsp.evaluate.cases import OperationKind, Sizes, captured_sizes, clamped, is_usable
from kernel_lsp.evaluate.prepare import Prepared
from kernel_lsp.gpu.occupancy import occupancy
from kernel_lsp.gpu.specs import GpuSpec

SMALL = 2
"""The other dims of a size with a large one."""
LARGE_SIZES = tuple(1 << exponent for exponent in range(12, 23, 2))
MAX_ELEMENTS = 1 << 26
"""Of all tensors of a size that is only bound, not run: a quarter of a GiB in single precision."""


def refused_launch(built: Built, bound: BoundOperation, gpu: GpuSpec) -> Crashed | None:
    """The first launch of an operation that `gpu` refuses, if any. Kernels that the compiler said nothing of pass."""
    facts = {kernel.symbol: kernel for kernel in built.kernels} if _launches(bound) else {}
    for launch in _launches(bound):
        kernel = facts.get(built.symbols.get(launch.kernel, launch.kernel))
        problem = _problem(launch, kernel, gpu) if kernel is not None and launch.n_blocks else ""
        if problem:
            return _refusal(problem, launch)
    return None


def refused_when_larger(
    built: Built, prepared: Prepared, kind: OperationKind, bound: BoundOperation, gpu: GpuSpec
) -> Crashed | None:
    """The first cooperative launch that `gpu` refuses at larger sizes inside the contract than those of `bound`."""
    if not any(_is_cooperative(launch) for launch in _launches(bound)):
        return None
    for sizes in _larger_sizes(prepared, kind):
        try:
            refused = refused_launch(built, prepared.bind(kind, sizes), gpu)
        except PlanError:  # another limit, which is said whenever somebody has such sizes
            continue
        if refused is not None:
            where = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            message = f"{refused.message} (at {where}; sizes that do not fit are for `where:` to exclude)"
            return refused.model_copy(update={"message": message})
    return None


# --- below


def _launches(bound: BoundOperation) -> list[BoundLaunch]:
    return [step for step in bound.steps if isinstance(step, BoundLaunch)]


def _is_cooperative(launch: BoundLaunch) -> bool:
    return launch.attributes.get("cooperative", 0) != 0


def _larger_sizes(prepared: Prepared, kind: OperationKind) -> Iterator[Sizes]:
    """Each symbol large, beside small ones and beside the captured ones."""
    task = prepared.task
    small = {symbol.name: clamped(symbol, SMALL, 1) for symbol in task.symbols}
    for size in LARGE_SIZES:
        for symbol in task.symbols:
            for base in (small, captured_sizes(task)):
                sizes = {**base, symbol.name: clamped(symbol, size, 1)}
                if is_usable(task, kind, sizes, MAX_ELEMENTS) and prepared.holds(kind, sizes):
                    yield sizes


def _problem(launch: BoundLaunch, kernel: KernelFacts, gpu: GpuSpec) -> str:
    """Why the launch is refused, or nothing."""
    n_threads = launch.n_threads_per_block
    resident = occupancy(
        gpu.architecture,
        n_threads_per_block=n_threads,
        n_registers=kernel.n_registers,
        shared_bytes=launch.shared_bytes + kernel.shared_bytes,
    )
    if resident.n_blocks == 0 and resident.limited_by == "registers":
        return (
            f"'{launch.kernel}' needs {kernel.n_registers} registers in each of {n_threads} threads, and a block can"
            f" have {gpu.architecture.registers_per_sm} in all: give it __launch_bounds__({n_threads}) or fewer threads"
        )
    n_at_once = resident.n_blocks * gpu.n_sms
    if _is_cooperative(launch) and n_at_once and launch.n_blocks > n_at_once:
        return (
            f"a cooperative launch of {launch.n_blocks} blocks of '{launch.kernel}', which must all run at once; an"
            f" {gpu.name} holds {n_at_once}, by its {resident.limited_by}: launch fewer, each with more to do"
        )
    return ""


def _refusal(problem: str, launch: BoundLaunch) -> Crashed:
    finding = Finding(
        code="invalid-launch",
        severity=Severity.ERROR,
        message=problem,
        source="plan",
        line=launch.line,
        kernel=launch.kernel,
    )
    return Crashed(message=f"{problem} at line {launch.line}", findings=(finding,))
