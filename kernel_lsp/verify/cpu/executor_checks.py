"""Run the CPU checks of a built candidate. Without a GPU that is every case. With one it is a short screen for
out-of-bounds accesses and races, which only the executor detects, before the candidate may use the GPU."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.estimate import estimate_baselines, estimate_operation, time_floor
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import NO_END, BlockSample
from kernel_lsp.verify.cpu.cpu_device import WATCHED_ORDER, Limits, LoadedKernel, Profile
from kernel_lsp.verify.devices.device import CaseOutcome, CaseRun, Skipped
from kernel_lsp.verify.model.cases import Case, Plan, captured_sizes, graph_of, n_largest
from kernel_lsp.verify.model.environment import (
    OTHER_POISONS,
    because_of_shared,
    environments_of,
)
from kernel_lsp.verify.probes.finder import PlanFinder
from kernel_lsp.verify.probes.launch_limits import few_at_once, refused_launch, refused_when_larger

RANKING_LIMITS = Limits(complete_instructions=60_000_000, max_instructions=2_000_000_000, cpu_s=30.0)
FULL_LIMITS = Limits(
    complete_instructions=400_000_000,
    max_instructions=20_000_000_000,
    cpu_s=90.0,
    max_thread_instructions=4_000_000_000,
)
"""At roughly 150 M instructions a second, a ranking takes under 0.5 s and a complete case under 3 s."""
MAX_INSTRUCTIONS_OF_BLOCKS = FULL_LIMITS.max_instructions // 2
"""Maximum instructions of a case with many blocks: more would exceed its CPU time."""
LONG_SUM_LIMITS = Limits(complete_instructions=400_000_000, max_instructions=2_000_000_000, cpu_s=90.0)
"""Limits for oversized sums; exceeding them is inconclusive."""
SINGLED_OUT_INSTRUCTIONS = 2_000_000_000
"""Maximum instructions of a complete run where one block may take a path of its own: five times a complete case, for
kernels that test the block index."""
SCREEN_LIMITS = Limits(
    complete_instructions=15_000_000,
    max_instructions=30_000_000,
    cpu_s=10.0,
    max_thread_instructions=10_000_000,
)
"""Limits before a GPU run: 0.1 s a case. The instructions are the bound."""
MAX_SCREENED_OPERATIONS = 10 * SCREEN_LIMITS.max_instructions
"""Operations of PyTorch at the smallest size from which no screen ends within its instructions: RegNet's 1.2 billion
did not, nor ResNet18's and EfficientNetB0's 3.5, after 9 to 30 s of a core to load them (2026-11-29)."""
MAX_SCREENED_INSTRUCTIONS = 4 * SCREEN_LIMITS.max_instructions
"""Instructions of a kernel's text, each once for each thread, from which no screen ends within its limit. Warps may
have parts of their own: attention in f32 has 290 to 1400 million at the smallest size and runs half of them. Screens of
nine candidates took 7 to 9 s each, and none had an answer (32 cores, 2026-11-30)."""
MAX_RUN_OPERATIONS = 10_000_000_000
"""Operations of PyTorch at the smallest size from which no run beside a GPU ends: no code has hundreds of them in an
instruction of a thread. ResNet101 has 79 billion, DenseNet201 57: four executors loaded the former's code and ran into
limits, 78 s of processors beside the GPU (32 cores, 2026-11-30)."""
BRIEF_INSTRUCTIONS = 2 * SCREEN_LIMITS.max_instructions
"""Maximum of these instructions for a case that ends within the screen's limit, if warps have parts of their own."""
_ENTRY = re.compile(r"\.entry (\w+)")
ENDLESS_LIMITS = Limits(
    complete_instructions=15_000_000,
    max_instructions=4_000_000_000,
    cpu_s=12.0,
    max_thread_instructions=500_000_000,
)
"""Limits for a small case that exceeded the screen's. So many instructions of one thread take at least 0.25 s on a GPU,
which issues at most one of them a cycle. No kernel needs that for a few thousand elements."""
WAITING_LIMITS = Limits(complete_instructions=15_000_000, max_instructions=1_000_000_000, cpu_s=12.0)
"""Limits for a small case whose threads wait longer than the screen allows: a livelock repeats its state within them.
Waiting costs about 1 ns an instruction."""
RANKED_WAIT_S = 4.0
"""Maximum CPU seconds of such a run before a candidate is only measured: its full check runs it within the screen's
limits, and then within the whole budget. 15 of 17 candidates for a batch norm, whose blocks wait at a grid barrier, had
no answer within a wall-clock deadline (2026-11-28)."""
SCREEN_BUDGET_S = 0.4
"""Seconds per operation: a screen that took longer skips the profile."""
N_SCREEN_CASES = 2
N_POISONED = 2
"""Cases that read uninitialised shared memory and run again over other bytes, the smallest first."""
SCREENED = "screened for races and stray accesses"
NOT_SCREENED = f"not {SCREENED}"
MAX_PROFILED_BYTES = 4 << 30
"""Maximum bytes of all tensors of the captured case for an estimate beside a measured time: the executor maps them."""
FULL_BUDGET_S = 25.0
"""CPU seconds per operation: the executor's, and PyTorch's by its operations. Once they are spent, the remaining cases
run from the smallest on."""
OPERATIONS_PER_S = 2_000_000_000
"""Operations of a fp64 reference per second of a core."""
REST_BUDGET_S = 15.0
"""CPU seconds for the remaining cases. Once it is spent, the rest is not run; the verdict lists what was."""
MIN_CASES = 4
"""Cases that run whatever the budget: the captured sizes, two small ones, exact integers."""
MAX_OPERATIONS = 2_000_000_000
"""Maximum operations of PyTorch for a case that needs all blocks: half a minute of a plain kernel's instructions."""
MAX_INSTRUCTIONS = 4_000_000_000
"""Maximum instructions of the kernel for such a case, by its profile."""
MIN_SAMPLED_BLOCKS = 12
FAR_TOO_MANY_INSTRUCTIONS = 2_000_000_000
"""Instructions of a complete case from which the work per block counts as grown since the captured sizes."""


async def rank(kernel: LoadedKernel) -> CheckOutcome | None:
    """Profile, and run as many informative cases as there are small ones: these, else the user's own inputs. None
    when they passed."""
    plan, profile = kernel.plan, _refused(kernel) or await _profile(kernel, RANKING_LIMITS)
    if isinstance(profile, Crashed | TimedOut | Unsupported):
        return profile
    failure = await _run_cases(kernel, [*plan[1:], plan[0]], max(1, len(plan) - 1), profile, RANKING_LIMITS)
    return failure or await _with_other_poison(kernel, RANKING_LIMITS)


async def check(kernel: LoadedKernel) -> CheckOutcome | None:
    """Profile, and run every case that the budget allows. None when all passed."""
    profile = _refused(kernel) or await _profile(kernel, FULL_LIMITS)
    if isinstance(profile, Crashed | TimedOut | Unsupported):
        return profile
    # First, since cases of many waiting blocks take long.
    return (
        await _with_few_at_once(kernel)
        or await _run_cases(kernel, kernel.plan, len(kernel.plan), profile, FULL_LIMITS)
        or await _with_other_poison(kernel, FULL_LIMITS)
        or await _otherwise(kernel)
    )


async def screen(
    kernel: LoadedKernel, *, estimates: bool = False, wait_s: float = WAITING_LIMITS.cpu_s
) -> CheckOutcome | None:
    """Run small cases within a short budget, in thread orders that expose races. None when none of them failed.
    Cases that exceed the budget are noted, and left to the GPU. `estimates` adds `estimate` where that was quick.
    `wait_s` bounds a run of threads that may wait; where it is short there is no other run of that case."""
    if refused := _refused(kernel):
        return refused
    started, n_run = time.monotonic(), 0
    is_brief = kernel.progress.may_wait and wait_s < WAITING_LIMITS.cpu_s
    brief = _brief_case(kernel)
    for case, bound in screened_cases(kernel.plan) if brief is None else [brief]:
        if is_brief and not n_run:
            outcome = await kernel.run(case, bound, replace(WAITING_LIMITS, cpu_s=wait_s))
        else:
            outcome = await kernel.run(case, bound, SCREEN_LIMITS)  # which long rows may legitimately exceed
            outcome = outcome if n_run else await _to_its_end(kernel, case, bound, outcome)
        if isinstance(outcome, Skipped):
            continue
        if not n_run and isinstance(outcome, TimedOut) and _is_endless(outcome):
            return outcome
        if isinstance(outcome, TimedOut | Unsupported):
            at = "one size" if n_run == 1 else f"{n_run} sizes"
            how_far = f"{SCREENED} at {at} alone" if n_run else NOT_SCREENED
            kernel.progress.notes.append(f"{kernel.name}: {how_far}: {outcome.message}")
            break
        if not isinstance(outcome, CaseRun):
            return outcome
        n_run += 1
        kernel.note(case, bound, None, outcome)
    if brief is not None and n_run:
        kernel.progress.notes.append(f"{kernel.name}: {SCREENED} at one size alone: the others are too long")
    failure = (
        await _with_other_poison(kernel, SCREEN_LIMITS) or await _with_few_at_once(kernel) or await _otherwise(kernel)
    )
    if failure is None and estimates and time.monotonic() - started < SCREEN_BUDGET_S:
        await estimate(kernel)
    return failure


def _brief_case(kernel: LoadedKernel) -> tuple[Case, BoundOperation] | None:
    """Return the case with the fewest threads where the smallest one of the screen is too long: a block of attention in
    f32 has half a million instructions at any size. None where the screen's own will do, or nothing is short enough."""
    plan = [entry for entry in kernel.plan if entry[0].family == "normal" and kernel.has_kernels_of(entry[1])]
    if not plan or _is_brief(kernel, screened_cases(kernel.plan)[0][1]):
        return None
    case, bound = min(plan, key=lambda entry: sum(_n_threads(launch) for launch in entry[1].launches))
    return (replace(case, thread_order=WATCHED_ORDER), bound) if _is_brief(kernel, bound) else None


def _is_brief(kernel: LoadedKernel, bound: BoundOperation) -> bool:
    return _n_written_instructions(kernel.built, bound) <= BRIEF_INSTRUCTIONS


async def estimate(kernel: LoadedKernel) -> None:
    """Profile within the limits of a screen, where the captured case is small enough."""
    if sum(tensor.n_bytes for tensor in kernel.plan[0][1].tensors) <= MAX_PROFILED_BYTES:
        await _profile(kernel, SCREEN_LIMITS)


def screened_cases(plan: Plan) -> Sequence[tuple[Case, BoundOperation]]:
    """Return the cases of a screen, which are watched for races. The smallest come first, then long rows, which most
    kernels split over several blocks, then cases chosen to have several blocks. Other thread orders, which a GPU does
    not define, would follow."""
    several = [(case, bound) for case, bound in plan if case.of_several_blocks]
    normal = [(case, bound) for case, bound in plan if case.family == "normal" and not case.of_several_blocks]
    ordinary = normal or list(plan[:1])
    orders = (WATCHED_ORDER, "random", "forward")

    def cost(entry: tuple[Case, BoundOperation]) -> tuple[int, int]:
        case, bound = entry
        return orders.index(case.thread_order), bound.n_elements

    return [*sorted(ordinary, key=cost)[:N_SCREEN_CASES], *several]


def is_too_long_to_screen(task: Task, plan: Plan, built: Built, gpu: GpuSpec) -> bool:
    """Check whether the smallest case of a screen exceeds its instructions."""
    return any(
        n_operations(task, case, gpu) > MAX_SCREENED_OPERATIONS
        or _n_written_instructions(built, bound) > MAX_SCREENED_INSTRUCTIONS
        for case, bound in screened_cases(plan)[:1]
    )


def is_too_long_to_run(task: Task, plan: Plan, gpu: GpuSpec) -> bool:
    """Check whether no run of a candidate ends within the limits beside a GPU, at any size."""
    return any(n_operations(task, case, gpu) > MAX_RUN_OPERATIONS for case, _ in screened_cases(plan)[:1])


def _n_written_instructions(built: Built, bound: BoundOperation) -> int:
    """Return the instructions of the kernels' PTX, each once for each thread: 0 where libraries do every step."""
    marks = [*((match.start(), match[1]) for match in _ENTRY.finditer(built.ptx)), (len(built.ptx), "")]
    written = {symbol: built.ptx.count(";", start, end) for (start, symbol), (end, _) in itertools.pairwise(marks)}
    return sum(written.get(built.symbols[launch.kernel], 0) * _n_threads(launch) for launch in bound.launches)


def _n_threads(launch: BoundLaunch) -> int:
    return launch.n_blocks * launch.n_threads_per_block


def _refused(kernel: LoadedKernel) -> Crashed | None:
    return refused_launches(kernel.built, kernel.plan, kernel.finder, kernel.gpu)


def refused_launches(built: Built, plan: Plan, finder: PlanFinder, gpu: GpuSpec) -> Crashed | None:
    """Return the failure of a launch that exceeds the GPU's limits, at the sizes of the plan or at larger ones."""
    launched = (refused_launch(built, bound, gpu) for _, bound in plan)
    return next((refused for refused in launched if refused), None) or refused_when_larger(
        built, finder, plan[0][1], gpu
    )


async def _profile(kernel: LoadedKernel, limits: Limits) -> Profile | Skipped | Crashed | TimedOut | Unsupported:
    """Count what the launches at the captured sizes do, and estimate from it."""
    profile = await kernel.profile(limits)
    if isinstance(profile, Profile):
        _estimate(kernel, profile)
    elif isinstance(profile, Skipped):
        kernel.progress.notes.append(f"{kernel.direction}: not profiled: {profile.reason}")
    return profile


def _estimate(kernel: LoadedKernel, profile: Profile) -> None:
    built, bound, progress = kernel.built, kernel.plan[0][1], kernel.progress
    ours = estimate_operation(bound, profile.counters, built.kernels, built.symbols, kernel.gpu)
    graph = graph_of(kernel.prepared.task, kernel.direction)
    baselines = estimate_baselines(graph, captured_sizes(kernel.prepared.task), kernel.gpu)
    best = min(baselines, key=lambda baseline: baseline.time_us)
    progress.estimates.append(ours)
    progress.times[kernel.name] = Comparison(
        baseline_name=best.name,
        baseline=best.estimate,
        ours=ours,
        baselines=baselines,
        floor=time_floor(graph, bound, kernel.gpu),
    )


async def _run_cases(
    kernel: LoadedKernel, plan: Plan, n_enough: int, profile: Profile | Skipped, limits: Limits
) -> CheckOutcome | None:
    """Run cases until `n_enough` were informative. None when all passed, else the first failure."""
    progress = kernel.progress
    if progress.singles_out_a_block:
        limits = replace(limits, complete_instructions=SINGLED_OUT_INSTRUCTIONS)
    started, n_run, left, reference_s = kernel.code.used_s, 0, list(plan), 0.0
    vast: list[tuple[Case, BoundOperation]] = []
    captured = next((bound for case, bound in plan if case.is_captured), plan[0][1])
    while left and n_run < n_enough:
        spent_s = kernel.code.used_s - started + reference_s
        if n_run >= MIN_CASES and spent_s > FULL_BUDGET_S:
            left.sort(key=lambda entry: entry[1].n_elements)
        if n_run >= MIN_CASES and spent_s > FULL_BUDGET_S + REST_BUDGET_S:
            progress.notes.append(f"{left[0][1].name}: {len(left)} more input families were not run (CPU time)")
            break
        case, bound = left.pop(0)
        growth = partial(growth_of, kernel.prepared.task, captured, case, bound)
        sample = None if progress.has_atomics else sample_of(bound, profile, limits, case.seed, growth)
        if sample is None and _is_vast(kernel, case, bound, profile, growth):
            vast.append((case, bound))
            continue
        reference_s += n_operations(kernel.prepared.task, case, kernel.gpu) / OPERATIONS_PER_S
        found = await kernel.run(case, bound, LONG_SUM_LIMITS if case.may_not_end else limits, sample)
        outcome = _timeout_of(kernel, case, found) if isinstance(found, TimedOut) else found
        if isinstance(outcome, Skipped):
            continue
        if not isinstance(outcome, CaseRun):
            return outcome
        n_run += 1
        kernel.note(case, bound, sample, outcome)
    progress.notes += said_of_vast(vast)
    if n_run == 0:
        return Unsupported(
            message=vast[0][1].name + " has cases that only a GPU has the time for, and no others"
            if vast
            else "PyTorch itself gives no finite reference for any case"
        )
    return None


def _is_vast(
    kernel: LoadedKernel, case: Case, bound: BoundOperation, profile: Profile | Skipped, growth: Callable[[], float]
) -> bool:
    """Check whether a case must run all blocks and exceeds the budget, for the target's own work and for the
    kernel. A case of very many blocks exceeds it even without growth per block."""
    if isinstance(profile, Skipped):
        return False
    n_wanted = n_instructions(profile, bound)
    if n_wanted > MAX_INSTRUCTIONS_OF_BLOCKS and not case.is_captured:
        return True
    is_much = n_operations(kernel.prepared.task, case, kernel.gpu) > MAX_OPERATIONS
    return is_much and n_wanted * growth() > MAX_INSTRUCTIONS


async def _with_few_at_once(kernel: LoadedKernel) -> CheckOutcome | None:
    """Run the smallest case that has enough blocks with a quarter of them resident. Applies where blocks may wait
    for others and the grid can exceed the GPU's resident blocks."""
    by_size = sorted(kernel.plan, key=lambda entry: entry[1].n_elements)
    for case, bound in by_size if kernel.progress.may_wait else ():
        few = few_at_once(kernel.built, kernel.finder, bound, kernel.gpu)
        if few:
            few_blocks = {"resident_blocks": few}
            outcome = await kernel.run(case, bound, WAITING_LIMITS, None, few_blocks)
            return outcome if isinstance(outcome, Mismatch | Crashed) else None
    return None


async def _to_its_end(kernel: LoadedKernel, case: Case, bound: BoundOperation, outcome: CaseOutcome) -> CaseOutcome:
    """Run a small case again with more budget where one thread exhausted the screen's alone, or where threads may wait.
    That distinguishes slow cases from endless ones."""
    if not isinstance(outcome, TimedOut):
        return outcome
    if _is_endless(outcome):
        return await kernel.run(case, bound, ENDLESS_LIMITS)
    return await kernel.run(case, bound, WAITING_LIMITS) if kernel.progress.may_wait else outcome


def _timeout_of(kernel: LoadedKernel, case: Case, outcome: TimedOut) -> TimedOut | Skipped:
    """Return the meaning of a case's timeout: inconclusive (`Skipped`) for a case larger than every requested one."""
    if case.may_not_end:
        return Skipped(outcome.message) if kernel.code.is_alive else outcome
    if _is_endless(outcome):
        return outcome
    why = "it hangs, or does more than the executor has time for; '// where:' may exclude such sizes"
    return outcome.model_copy(update={"message": f"{outcome.message} {sizes_of(case)}: {why}"})


async def _with_other_poison(kernel: LoadedKernel, limits: Limits) -> Mismatch | Crashed | None:
    """Run the smallest cases again that read uninitialised shared memory, with other bytes in it. A timeout is
    inconclusive."""
    for one in sorted(kernel.doubtful, key=lambda one: one.bound.n_elements)[:N_POISONED]:
        for poison in OTHER_POISONS:
            outcome = await kernel.run(one.case, one.bound, limits, one.sample, {"shared_poison": poison})
            if isinstance(outcome, Mismatch | Crashed):
                return because_of_shared(outcome, one.run)
    return None


async def _otherwise(kernel: LoadedKernel) -> Mismatch | Crashed | None:
    """Run small cases in the environments that the kernel's code depends on. A timeout is inconclusive."""
    for (case, bound), other in itertools.product(screened_cases(kernel.plan), environments_of(kernel.built)):
        outcome = await kernel.run(case, bound, SCREEN_LIMITS, None, other.circumstances)
        if isinstance(outcome, Mismatch | Crashed):
            return outcome.model_copy(update={"message": f"{other.words}: {outcome.message}"})
    return None


def _is_endless(outcome: TimedOut) -> bool:
    return any(finding.code == NO_END for finding in outcome.findings)


def growth_of(task: Task, captured: BoundOperation, case: Case, bound: BoundOperation) -> float:
    """Return the growth of a block's work against the captured sizes, at least 1. It follows the block's share of the
    largest tensor, e.g. of all pairs of a sequence's elements."""
    graph = graph_of(task, case.operation)
    shares = [
        n_largest(graph, sizes) / max(at.n_blocks, 1)
        for sizes, at in ((captured_sizes(task), captured), (dict(case.sizes), bound))
    ]
    return max(1.0, shares[1] / max(shares[0], 1.0))


def sample_of(
    bound: BoundOperation, profile: Profile | Skipped, limits: Limits, seed: int, growth: Callable[[], float]
) -> BlockSample | None:
    """Return the sample of blocks to run, None for all blocks. Only an operation of one launch can be sampled: later
    launches need all blocks of earlier ones. A block's work is that of the profile, and counts as grown where the total
    would be far too much."""
    launches = bound.launches
    if isinstance(profile, Skipped) or len(bound.steps) != 1 or len(launches) != 1:
        return None
    n_instructions = max(profile.instructions_per_block, 1.0)
    if launches[0].n_blocks * n_instructions * growth() > FAR_TOO_MANY_INSTRUCTIONS:
        n_instructions *= growth()
    n_affordable = int(limits.complete_instructions / n_instructions)
    if launches[0].n_blocks <= max(n_affordable, MIN_SAMPLED_BLOCKS):
        return None
    return BlockSample(n_blocks=max(n_affordable, MIN_SAMPLED_BLOCKS), seed=seed)


def n_operations(task: Task, case: Case, gpu: GpuSpec) -> int:
    """Return the operations that the case requires of PyTorch, independent of the kernel; 0 where that depends on
    values."""
    with suppress(ExpressionError):
        kernels = eager_run(graph_of(task, case.operation), dict(case.sizes), gpu).kernels
        return sum(kernel.n_operations for kernel in kernels)
    return 0


def n_instructions(profile: Profile, bound: BoundOperation) -> float:
    """Return the instructions of all blocks, if each has as many as the profiled ones."""
    n_profiled = sum(counters.n_blocks for counters in profile.counters)
    total = sum(c.n_instructions / max(c.n_blocks_run, 1) * c.n_blocks for c in profile.counters)
    return total * bound.n_blocks / max(n_profiled, 1)


def said_of_vast(vast: Plan) -> list[str]:
    """Return one note on the cases left to a GPU."""
    if not vast:
        return []
    (case, bound), n_more = vast[0], len(vast) - 1
    more = f" and in {n_more} more cases" if n_more else ""
    return [f"{bound.name}: not run {sizes_of(case)}{more}: all blocks would have to, and only a GPU has the time"]


def sizes_of(case: Case) -> str:
    """Return the case's sizes in words."""
    sizes = ", ".join(f"{name} = {size:,}" for name, size in case.sizes)
    return f"at {sizes}" if sizes else "at the captured sizes"
