"""Detect launches that a GPU refuses, from the compiler's facts of their kernels and from their plan's grids and shared
memory.

The executor knows neither registers nor sizes that are not run. Three errors would pass every case there: a block whose
registers do not fit, a cooperative grid that grows beyond the resident blocks, and shared memory for a row of any
length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from kernel_lsp.core.expression import Constant, Expression, free_names, parts
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, Launch, Operation
from kernel_lsp.core.verdict import Built, Crashed, KernelFacts
from kernel_lsp.errors import PlanError
from kernel_lsp.gpu.launch import Occupancy, occupancy
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.plan.binding import MAX_SHARED_BYTES, SharedMemoryError, shared_bound
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.probes.finder import Budget, PlanFinder

MANY_BLOCKS = 32
LEAST_AT_ONCE = 8
"""Minimum resident blocks that are simulated: a few neighbours may wait for each other, as blocks start in about the
order of their indices."""
SMALL = 2
"""The other dims of a size with a large one."""
LARGE_SIZES = tuple(1 << exponent for exponent in range(12, 23, 2))
BOUND = Budget(1 << 26, or_captured=True)
"""For a size that is only bound, not run: 256 MiB in single precision."""
ROW_SIZES = tuple(size << exponent for exponent in range(11, 22) for size in (2, 3))
"""Sizes of one dim by which shared memory may grow: rows of 4,096 to 6 million elements."""
ROW_ALIGNMENT = 128
"""Alignment of sizes next to a number of the contract: more than contracts require of a dim for vectors and tiles."""


def refused_launch(built: Built, bound: BoundOperation, gpu: GpuSpec) -> Crashed | None:
    """Return the failure of the first launch of an operation that `gpu` refuses, if any. Kernels without compiler facts
    pass."""
    facts = {kernel.symbol: kernel for kernel in built.kernels} if bound.launches else {}
    for launch in bound.launches:
        kernel = facts.get(built.symbols.get(launch.kernel, launch.kernel))
        problem = _problem(launch, kernel, gpu) if kernel is not None and launch.n_blocks else ""
        if problem:
            return _refusal(f"{problem} at line {launch.line}", problem, launch.line, launch.kernel)
    return None


def refused_when_larger(built: Built, finder: PlanFinder, bound: BoundOperation, gpu: GpuSpec) -> Crashed | None:
    """Return the failure of the first launch that `gpu` refuses at larger sizes inside the contract than those of
    `bound`: a cooperative one, or one whose shared memory grows. Other limits are the operator's: it leaves such sizes
    to PyTorch."""
    sizes_to_bind: list[Iterable[Sizes]] = []
    if any(_is_cooperative(launch) for launch in bound.launches):
        sizes_to_bind.append(_larger_sizes(finder, LARGE_SIZES))
    if _growing(finder.operation):
        sizes_to_bind.append(_larger_sizes(finder, _row_sizes(finder.operation)))
    for sizes in itertools.chain.from_iterable(sizes_to_bind):
        refused = _refused_at(built, finder, sizes, gpu)
        if refused is not None:
            where = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            message = f"{refused.message} (at {where}; sizes that do not fit are for `where:` to exclude)"
            return refused.model_copy(update={"message": message})
    return None


def few_at_once(built: Built, finder: PlanFinder, bound: BoundOperation, gpu: GpuSpec) -> dict[str, int]:
    """Return, for each kernel whose grid exceeds the resident blocks of `gpu` at larger sizes, a part of its blocks in
    `bound`. Running with so few resident blocks shows whether blocks wait for some that have not started."""
    few = {launch.kernel: max(LEAST_AT_ONCE, launch.n_blocks // 4) for launch in bound.launches if _is_many(launch)}
    growing: set[str] = set()
    facts = {kernel.symbol: kernel for kernel in built.kernels}
    for sizes in _larger_sizes(finder, LARGE_SIZES) if few else ():
        try:
            larger = finder.bind(sizes)
        except PlanError:
            continue
        for launch in larger.launches:
            kernel = facts.get(built.symbols.get(launch.kernel, launch.kernel))
            if kernel is not None and launch.n_blocks > _resident(launch, kernel, gpu).n_blocks * gpu.n_sms:
                growing.add(launch.kernel)
    return {kernel: number for kernel, number in few.items() if kernel in growing}


def _is_many(launch: BoundLaunch) -> bool:
    return not _is_cooperative(launch) and launch.n_blocks >= MANY_BLOCKS


def _is_cooperative(launch: BoundLaunch) -> bool:
    return launch.attributes.get("cooperative", 0) != 0


def _growing(operation: Operation) -> list[Launch]:
    """Return the launches whose shared memory depends on the sizes."""
    return [step for step in operation.steps if isinstance(step, Launch) and free_names(step.shared_bytes)]


def _row_sizes(operation: Operation) -> list[int]:
    """Return sizes for a dim by which shared memory grows, including those that the contract names."""
    conditions: list[Expression] = [condition.expression for condition in operation.where]
    conditions += [launch.condition for launch in _growing(operation) if launch.condition is not None]
    named = (part.value for condition in conditions for part in parts(condition) if isinstance(part, Constant))
    limits = [int(value) for value in named if ROW_SIZES[0] <= value <= ROW_SIZES[-1]]
    near = {size for limit in limits for size in (limit, limit - 1, limit // ROW_ALIGNMENT * ROW_ALIGNMENT)}
    return sorted({*ROW_SIZES, *near})


def _refused_at(built: Built, finder: PlanFinder, sizes: Sizes, gpu: GpuSpec) -> Crashed | None:
    try:
        bound = finder.bind(sizes)
    except SharedMemoryError as error:
        return _refusal(error.message, error.message, error.line, None)
    except PlanError:  # another limit, which is reported for such sizes when they are run
        return None
    return refused_launch(built, bound, gpu) or _crowded_out(built, finder.operation, bound)


def _crowded_out(built: Built, operation: Operation, bound: BoundOperation) -> Crashed | None:
    """Return the failure of the first launch with more shared memory than the kernel's own variables leave."""
    facts = {kernel.symbol: kernel for kernel in built.kernels}
    written = {launch.span.line: launch for launch in _growing(operation)}
    for launch in bound.launches:
        kernel = facts.get(built.symbols.get(launch.kernel, launch.kernel))
        if kernel is not None and launch.shared_bytes + kernel.shared_bytes > MAX_SHARED_BYTES:
            problem = (
                f"'{launch.kernel}' asks for {launch.shared_bytes} bytes of shared memory beside {kernel.shared_bytes}"
                f" of its own: {MAX_SHARED_BYTES} at most"
            )
            problem += shared_bound(written[launch.line], kernel.shared_bytes) if launch.line in written else ""
            return _refusal(problem, problem, launch.line, launch.kernel)
    return None


def _larger_sizes(finder: PlanFinder, large: Iterable[int]) -> Iterator[Sizes]:
    """Yield each symbol large, with small and with captured other sizes."""
    for size, symbol in itertools.product(large, finder.symbols):
        for base in (finder.small(SMALL), finder.captured):
            sizes = finder.with_sizes(base, [symbol], size)
            if finder.admits(sizes, BOUND):
                yield sizes


def _problem(launch: BoundLaunch, kernel: KernelFacts, gpu: GpuSpec) -> str:
    """Explain why the launch is refused; empty if it is not."""
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


def _refusal(message: str, problem: str, line: int | None, kernel: str | None) -> Crashed:
    finding = Finding(
        code="invalid-launch",
        severity=Severity.ERROR,
        message=problem,
        source="plan",
        line=line,
        kernel=kernel,
    )
    return Crashed(message=message, findings=(finding,))
