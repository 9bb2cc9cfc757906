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
from kernel_lsp.gpu.occupancy import Occupancy, occupancy
from kernel_lsp.gpu.specs import GpuSpec

MANY_BLOCKS = 32
LEAST_AT_ONCE = 8
"""A few neighbours may wait for each other, as blocks start about in the order of their numbers."""
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


def few_at_once(
    built: Built, prepared: Prepared, kind: OperationKind, bound: BoundOperation, gpu: GpuSpec
) -> dict[str, int]:
    """By kernel, a part of the blocks of its launch in `bound`, for each whose grid at larger sizes of the contract is
    more than `gpu` runs at once: so many at once show whether blocks wait for some that have not started."""
    few = {launch.kernel: max(LEAST_AT_ONCE, launch.n_blocks // 4) for launch in _launches(bound) if _is_many(launch)}
    growing: set[str] = set()
    facts = {kernel.symbol: kernel for kernel in built.kernels}
    for sizes in _larger_sizes(prepared, kind) if few else ():
        try:
            larger = prepared.bind(kind, sizes)
        except PlanError:
            continue
        for launch in _launches(larger):
            kernel = facts.get(built.symbols.get(launch.kernel, launch.kernel))
            if kernel is not None and launch.n_blocks > _resident(launch, kernel, gpu).n_blocks * gpu.n_sms:
                growing.add(launch.kernel)
    return {kernel: number for kernel, number in few.items() if kernel in growing}


# --- below


def _is_many(launch: BoundLaunch) -> bool:
    return not _is_cooperative(launch) and launch.n_blocks >= MANY_BLOCKS


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
    resident = _resident(launch, kernel, gpu)
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


def _resident(launch: BoundLaunch, kernel: KernelFacts, gpu: GpuSpec) -> Occupancy:
    return occupancy(
        gpu.architecture,
        n_threads_per_block=launch.n_threads_per_block,
        n_registers=kernel.n_registers,
        shared_bytes=launch.shared_bytes + kernel.shared_bytes,
    )


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
