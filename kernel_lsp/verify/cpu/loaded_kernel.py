"""One direction of a built candidate on an executor that has loaded it: what every CPU check works on."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built, Crashed, TimedOut, Unsupported
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import BlockSample
from kernel_lsp.verify.cpu.environment_variants import reads_unwritten
from kernel_lsp.verify.cpu.prepared import CpuKernel, Limits, Profile
from kernel_lsp.verify.devices.device import CaseOutcome, CaseRun, DeviceCase, Skipped
from kernel_lsp.verify.model.cases import Case, OperationKind, Sizes
from kernel_lsp.verify.model.environment import USUAL, Circumstances
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase, read_expectations


@dataclass(frozen=True)
class Doubtful:
    """A correct case in which the kernel read uninitialised memory."""

    case: Case
    bound: BoundOperation
    sample: BlockSample | None
    run: CaseRun


@dataclass
class LoadedKernel:
    """A loaded candidate with the cases of one direction, whose files come from the `store`. `progress` collects the
    evidence, and `gpu` is the target of estimates."""

    code: CpuKernel
    store: CaseStore
    prepared: Prepared
    plan: Plan
    progress: Progress
    gpu: GpuSpec
    doubtful: list[Doubtful] = field(default_factory=list)

    @property
    def built(self) -> Built:
        return self.code.built

    @property
    def direction(self) -> OperationKind:
        return self.plan[0][0].operation

    @property
    def known(self) -> list[Sizes]:
        """Return the distinct sizes of the cases."""
        return [dict(sizes) for sizes in dict.fromkeys(case.sizes for case, _ in self.plan)]

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return self.prepared.operation(self.direction).name

    async def run(
        self,
        case: Case,
        bound: BoundOperation,
        limits: Limits,
        sample: BlockSample | None = None,
        circumstances: Circumstances = USUAL,
    ) -> CaseOutcome:
        """Run and judge one case."""
        files = await self.store.get(case)
        if isinstance(files, NoCase):
            return Skipped(files.reason)
        given = DeviceCase(case, bound, files, read_expectations(files))
        return await self.code.run(given, limits, sample, circumstances)

    def note(self, case: Case, bound: BoundOperation, sample: BlockSample | None, run: CaseRun) -> None:
        """Record a correct case."""
        self.progress.cases.append(run.result)
        self.progress.add_findings(run.findings)
        if reads_unwritten(run):
            self.doubtful.append(Doubtful(case, bound, sample, run))

    async def profile(self, limits: Limits) -> Profile | Crashed | TimedOut | Unsupported | Skipped:
        """Count what the launches at the captured sizes do."""
        case, bound = self.plan[0]
        files = await self.store.get(case)
        return (
            Skipped(files.reason) if isinstance(files, NoCase) else await self.code.profile(bound, case, files, limits)
        )
