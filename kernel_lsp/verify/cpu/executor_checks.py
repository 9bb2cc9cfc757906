"""Run the CPU checks of a built candidate. Without a GPU that is every case. With one it is a short screen for
out-of-bounds accesses and races, which only the executor detects, before the candidate may use the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.gpu.estimate import estimate_baselines, estimate_operation
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import NO_END, BlockSample, PtxExecutor
from kernel_lsp.verify.cpu.device import (
    WATCHED_ORDER,
    CaseOutcome,
    CaseRun,
    CpuDevice,
    Limits,
    Profile,
    Skipped,
)
from kernel_lsp.verify.cpu.environment_variants import (
    OTHER_POISONS,
    because_of_shared,
    other_circumstances,
    reads_unwritten,
)
from kernel_lsp.verify.cpu.execution_budget import (
    MAX_INSTRUCTIONS,
    MAX_OPERATIONS,
    growth_of,
    n_instructions,
    n_operations,
    said_of_vast,
    sample_of,
    sizes_of,
)
from kernel_lsp.verify.model.cases import Case, OperationKind, captured_sizes, graph_of
from kernel_lsp.verify.model.environment import Circumstances
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.launch_limits import few_at_once, refused_launch, refused_when_larger

RANKING_LIMITS = Limits(complete_instructions=60_000_000, max_instructions=2_000_000_000, deadline_s=30.0)
FULL_LIMITS = Limits(
    complete_instructions=400_000_000,
    max_instructions=20_000_000_000,
    deadline_s=90.0,
    max_thread_instructions=4_000_000_000,
)
"""At roughly 150 M instructions a second, a ranking takes under 0.5 s and a complete case under 3 s."""
MAX_INSTRUCTIONS_OF_BLOCKS = FULL_LIMITS.max_instructions // 2
"""Maximum instructions of a case with many blocks: more would exceed the deadline on a busy machine."""
LONG_SUM_LIMITS = Limits(complete_instructions=400_000_000, max_instructions=2_000_000_000, deadline_s=90.0)
"""Limits for oversized sums; exceeding them is inconclusive."""
SINGLED_OUT_INSTRUCTIONS = 2_000_000_000
"""Maximum instructions of a complete run where one block may take a path of its own: five times a complete case, for
kernels that test the block index."""
SCREEN_LIMITS = Limits(
    complete_instructions=15_000_000,
    max_instructions=30_000_000,
    deadline_s=10.0,
    max_thread_instructions=10_000_000,
)
"""Limits before a GPU run: 0.1 s a case. The instructions are the bound; the deadline covers a busy machine."""
ENDLESS_LIMITS = Limits(
    complete_instructions=15_000_000,
    max_instructions=4_000_000_000,
    deadline_s=12.0,
    max_thread_instructions=500_000_000,
)
"""Limits for a small case that exceeded the screen's. So many instructions of one thread take at least 0.25 s on a GPU,
which issues at most one of them a cycle. No kernel needs that for a few thousand elements."""
WAITING_LIMITS = Limits(complete_instructions=15_000_000, max_instructions=1_000_000_000, deadline_s=12.0)
"""Limits for a small case whose threads wait longer than the screen allows: a livelock repeats its state within them.
Waiting costs about 1 ns an instruction."""
SCREEN_BUDGET_S = 0.4
"""Seconds per operation: a screen that took longer skips the profile."""
N_SCREEN_CASES = 2
N_POISONED = 2
"""Cases that read uninitialised shared memory and run again over other bytes, the smallest first."""
NOT_SCREENED = "not screened for races and stray accesses"
MAX_PROFILED_BYTES = 16 << 30
"""Maximum bytes of all tensors of the captured case, which the executor maps."""
FULL_BUDGET_S = 25.0
"""Seconds per operation. Once it is spent, the remaining cases run from the smallest on."""
REST_BUDGET_S = 15.0
"""Seconds for the remaining cases. Once it is spent, the rest is not run; the verdict lists what was."""
MIN_CASES = 4
"""Cases that run whatever the budget: the captured sizes, two small ones, exact integers."""


@dataclass(frozen=True)
class _Doubtful:
    """A correct case in which the kernel read uninitialised memory."""

    case: Case
    bound: BoundOperation
    sample: BlockSample | None
    run: CaseRun


class ExecutorChecks:
    """Checks of one task's candidates, each on an executor that has the candidate loaded."""

    def __init__(self, task: Task, device: CpuDevice, gpu: GpuSpec) -> None:
        self._task, self._device, self._gpu = task, device, gpu

    async def rank(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> CheckOutcome | None:
        """Profile, and run as many informative cases as there are small ones: these, else the user's own inputs. None
        when they passed."""
        if refused := self._refused(built, prepared, plan):
            return refused
        profile = await self._profile(executor, built, prepared, plan, RANKING_LIMITS, progress)
        if isinstance(profile, Crashed | TimedOut | Unsupported):
            return profile
        cases, n_enough = [*plan[1:], plan[0]], max(1, len(plan) - 1)
        return await self._run_cases(executor, built, cases, n_enough, profile, RANKING_LIMITS, progress)

    async def check(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> CheckOutcome | None:
        """Profile, and run every case that the budget allows. None when all passed."""
        if refused := self._refused(built, prepared, plan):
            return refused
        profile = await self._profile(executor, built, prepared, plan, FULL_LIMITS, progress)
        if isinstance(profile, Crashed | TimedOut | Unsupported):
            return profile
        # First, since cases of many waiting blocks take long.
        return (
            await self._with_few_at_once(executor, built, prepared, plan, progress)
            or await self._run_cases(executor, built, plan, len(plan), profile, FULL_LIMITS, progress)
            or await self._otherwise(executor, built, plan)
        )

    async def screen(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> CheckOutcome | None:
        """Run small cases within a short budget, in thread orders that expose races. None when none of them failed.
        Cases that exceed the budget are noted, and left to the GPU."""
        if refused := self._refused(built, prepared, plan):
            return refused
        name, n_run = prepared.operation(plan[0][0].operation).name, 0
        doubtful: list[_Doubtful] = []
        for case, bound in screened_cases(plan):
            run = self._bounded if n_run else self._to_its_end
            outcome = await run(executor, built, bound, case, progress)
            if isinstance(outcome, Skipped):
                continue
            if not n_run and isinstance(outcome, TimedOut) and _is_endless(outcome):
                return outcome
            if isinstance(outcome, TimedOut | Unsupported):
                at = "one size" if n_run == 1 else f"{n_run} sizes"
                how_far = f"screened for races and stray accesses at {at} alone" if n_run else NOT_SCREENED
                progress.notes.append(f"{name}: {how_far}: {outcome.message}")
                break
            if not isinstance(outcome, CaseRun):
                return outcome
            n_run += 1
            progress.cases.append(outcome.result)
            progress.add_findings(outcome.findings)
            if reads_unwritten(outcome):
                doubtful.append(_Doubtful(case, bound, None, outcome))
        failure = (
            await self._with_other_poison(executor, built, doubtful, SCREEN_LIMITS)
            or await self._with_few_at_once(executor, built, prepared, plan, progress)
            or await self._otherwise(executor, built, plan)
        )
        return failure

    async def screen_and_estimate(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> CheckOutcome | None:
        """Run `screen`, then `estimate` where the screen was quick."""
        started = time.monotonic()
        failure = await self.screen(executor, built, prepared, plan, progress)
        if failure is None and time.monotonic() - started < SCREEN_BUDGET_S:
            await self.estimate(executor, built, prepared, plan, progress)
        return failure

    async def estimate(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> None:
        """Profile within the limits of a screen, where the captured case is small enough."""
        if sum(tensor.n_bytes for tensor in plan[0][1].tensors) <= MAX_PROFILED_BYTES:
            await self._profile(executor, built, prepared, plan, SCREEN_LIMITS, progress)

    # --- below: launches, a case of the screen, profiles and cases

    def _refused(self, built: Built, prepared: Prepared, plan: Plan) -> Crashed | None:
        """Return the failure of a launch that exceeds the GPU's limits, at the sizes of the plan or at larger ones."""
        launched = (refused_launch(built, bound, self._gpu) for _, bound in plan)
        case, bound = plan[0]
        return next((refused for refused in launched if refused), None) or refused_when_larger(
            built, prepared, case.operation, bound, self._gpu
        )

    async def _bounded(
        self, executor: PtxExecutor, built: Built, bound: BoundOperation, case: Case, progress: Progress
    ) -> CaseOutcome:
        """Run within the screen's limits, which long rows may legitimately exceed."""
        return await self._device.run_case(executor, built, bound, case, None, SCREEN_LIMITS)

    async def _to_its_end(
        self, executor: PtxExecutor, built: Built, bound: BoundOperation, case: Case, progress: Progress
    ) -> CaseOutcome:
        """Run a small case again with more budget where one thread exhausted the screen's alone, or where threads may
        wait. That distinguishes slow cases from endless ones."""
        outcome = await self._bounded(executor, built, bound, case, progress)
        if not isinstance(outcome, TimedOut) or not executor.is_alive:
            return outcome
        if _is_endless(outcome):
            return await self._device.run_case(executor, built, bound, case, None, ENDLESS_LIMITS)
        if progress.may_wait:
            return await self._device.run_case(executor, built, bound, case, None, WAITING_LIMITS)
        return outcome

    async def _profile(
        self,
        executor: PtxExecutor,
        built: Built,
        prepared: Prepared,
        plan: Plan,
        limits: Limits,
        progress: Progress,
    ) -> Profile | Skipped | Crashed | TimedOut | Unsupported:
        """Count what the launches at the captured sizes do, and estimate from it."""
        case, bound = plan[0]
        profile = await self._device.profile(executor, built, bound, case, limits)
        if isinstance(profile, Profile):
            self._estimate(built, prepared, case.operation, bound, profile, progress)
        elif isinstance(profile, Skipped):
            progress.notes.append(f"{case.operation}: not profiled: {profile.reason}")
        return profile

    def _estimate(
        self,
        built: Built,
        prepared: Prepared,
        direction: OperationKind,
        bound: BoundOperation,
        profile: Profile,
        progress: Progress,
    ) -> None:
        ours = estimate_operation(bound, profile.counters, built.kernels, built.symbols, self._gpu)
        baselines = estimate_baselines(graph_of(self._task, direction), captured_sizes(self._task), self._gpu)
        best = min(baselines, key=lambda baseline: baseline.time_us)
        progress.estimates.append(ours)
        progress.times[prepared.operation(direction).name] = Comparison(
            baseline_name=best.name, baseline=best.estimate, ours=ours, baselines=baselines
        )

    async def _run_cases(
        self,
        executor: PtxExecutor,
        built: Built,
        plan: Plan,
        n_enough: int,
        profile: Profile | Skipped,
        limits: Limits,
        progress: Progress,
    ) -> CheckOutcome | None:
        """Run cases until `n_enough` were informative. None when all passed, else the first failure."""
        if progress.singles_out_a_block:
            limits = replace(limits, complete_instructions=SINGLED_OUT_INSTRUCTIONS)
        started, n_run, left = time.monotonic(), 0, list(plan)
        doubtful: list[_Doubtful] = []
        vast: list[tuple[Case, BoundOperation]] = []
        captured = next((bound for case, bound in plan if case.is_captured), plan[0][1])
        while left and n_run < n_enough:
            elapsed_s = time.monotonic() - started
            if n_run >= MIN_CASES and elapsed_s > FULL_BUDGET_S:
                left.sort(key=lambda entry: _n_elements(entry[1]))
            if n_run >= MIN_CASES and elapsed_s > FULL_BUDGET_S + REST_BUDGET_S:
                progress.notes.append(f"{left[0][1].name}: {len(left)} more input families were not run (time)")
                break
            case, bound = left.pop(0)
            growth = partial(growth_of, self._task, captured, case, bound)
            sample = None if progress.has_atomics else sample_of(bound, profile, limits, case.seed, growth)
            if sample is None and self._is_vast(case, bound, profile, growth):
                vast.append((case, bound))
                continue
            outcome = await self._run_case(executor, built, bound, case, sample, limits)
            if isinstance(outcome, Skipped):
                continue
            if not isinstance(outcome, CaseRun):
                return outcome
            n_run += 1
            progress.cases.append(outcome.result)
            progress.add_findings(outcome.findings)
            if reads_unwritten(outcome):
                doubtful.append(_Doubtful(case, bound, sample, outcome))
        progress.notes += said_of_vast(vast)
        if n_run == 0:
            return Unsupported(
                message=vast[0][1].name + " has cases that only a GPU has the time for, and no others"
                if vast
                else "PyTorch itself gives no finite reference for any case"
            )
        return await self._with_other_poison(executor, built, doubtful, limits)

    def _is_vast(
        self, case: Case, bound: BoundOperation, profile: Profile | Skipped, growth: Callable[[], float]
    ) -> bool:
        """Check whether a case must run all blocks and exceeds the budget, for the target's own work and for the
        kernel. A case of very many blocks exceeds it even without growth per block."""
        if isinstance(profile, Skipped):
            return False
        n_wanted = n_instructions(profile, bound)
        if n_wanted > MAX_INSTRUCTIONS_OF_BLOCKS and not case.is_captured:
            return True
        is_much = n_operations(self._task, case, self._gpu) > MAX_OPERATIONS
        return is_much and n_wanted * growth() > MAX_INSTRUCTIONS

    async def _run_case(
        self,
        executor: PtxExecutor,
        built: Built,
        bound: BoundOperation,
        case: Case,
        sample: BlockSample | None,
        limits: Limits,
    ) -> CaseOutcome:
        """Run one case within the limits, or within its own limits where a timeout is inconclusive."""
        if not case.may_not_end:
            found = await self._device.run_case(executor, built, bound, case, sample, limits)
            if isinstance(found, TimedOut) and not _is_endless(found):
                why = "it hangs, or does more than the executor has time for; '// where:' may exclude such sizes"
                return found.model_copy(update={"message": f"{found.message} {sizes_of(case)}: {why}"})
            return found
        outcome = await self._device.run_case(executor, built, bound, case, sample, LONG_SUM_LIMITS)
        return Skipped(outcome.message) if isinstance(outcome, TimedOut) and executor.is_alive else outcome

    async def _with_few_at_once(
        self, executor: PtxExecutor, built: Built, prepared: Prepared, plan: Plan, progress: Progress
    ) -> CheckOutcome | None:
        """Run the smallest case that has enough blocks with a quarter of them resident. Applies where blocks may wait
        for others and the grid can exceed the GPU's resident blocks."""
        for case, bound in sorted(plan, key=lambda entry: _n_elements(entry[1])) if progress.may_wait else ():
            few = few_at_once(built, prepared, case.operation, bound, self._gpu)
            if few:
                few_blocks = Circumstances(resident_blocks=few)
                outcome = await self._device.run_case(executor, built, bound, case, None, WAITING_LIMITS, few_blocks)
                return outcome if isinstance(outcome, Mismatch | Crashed) else None
        return None

    async def _with_other_poison(
        self, executor: PtxExecutor, built: Built, doubtful: Sequence[_Doubtful], limits: Limits
    ) -> Mismatch | Crashed | None:
        """Run the smallest cases again that read uninitialised shared memory, with other bytes in it. A timeout on a
        busy machine is inconclusive."""
        for one in sorted(doubtful, key=lambda one: _n_elements(one.bound))[:N_POISONED]:
            for poison in OTHER_POISONS:
                other = Circumstances(shared_poison=poison)
                outcome = await self._device.run_case(executor, built, one.bound, one.case, one.sample, limits, other)
                if isinstance(outcome, Mismatch | Crashed):
                    return because_of_shared(outcome, one.run)
        return None

    async def _otherwise(self, executor: PtxExecutor, built: Built, plan: Plan) -> Mismatch | Crashed | None:
        """Run small cases in the environments of other GPUs that the kernel's code depends on, with diverged lanes and
        at other addresses. A timeout is inconclusive."""
        for other in other_circumstances(built, screened_cases(plan)):
            if not executor.is_alive:
                break
            outcome = await self._device.run_case(
                executor, built, other.bound, other.case, None, SCREEN_LIMITS, other.circumstances
            )
            if isinstance(outcome, Mismatch | Crashed):
                return outcome.model_copy(update={"message": f"{other.words}: {outcome.message}"})
        return None


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
        return orders.index(case.thread_order), _n_elements(bound)

    return [*sorted(ordinary, key=cost)[:N_SCREEN_CASES], *several]


# --- below: small decisions


def _is_endless(outcome: TimedOut) -> bool:
    return any(finding.code == NO_END for finding in outcome.findings)


def _n_elements(bound: BoundOperation) -> int:
    return sum(tensor.n_elements for tensor in bound.tensors)
