"""One direction of a built candidate on an executor that has loaded it: what every CPU check works on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.ptx.executor import BlockSample, KernelFactsOfPtx, PtxExecutor
from kernel_lsp.verify.cpu.device import CaseOutcome, CpuDevice, Limits
from kernel_lsp.verify.model.cases import Case, OperationKind, Sizes
from kernel_lsp.verify.model.environment import USUAL, Circumstances
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared


@dataclass(frozen=True)
class LoadedKernel:
    """A loaded candidate with the cases of one direction. `progress` collects the evidence; `facts` are of all its
    kernels."""

    device: CpuDevice
    executor: PtxExecutor
    built: Built
    prepared: Prepared
    plan: Plan
    progress: Progress
    facts: Collection[KernelFactsOfPtx] = ()

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
        return await self.device.run_case(self.executor, self.built, bound, case, sample, limits, circumstances)
