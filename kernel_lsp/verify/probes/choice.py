"""Choose the cases that a candidate is checked with, and bind its launches in each."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES, Case, Depth, OperationKind
from kernel_lsp.verify.model.progress import Plan
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.kernel import Kernel
from kernel_lsp.verify.probes.probe import proposed
from kernel_lsp.verify.probes.table import TABLE

FRESH_SEED_BITS = 31
_ATOMIC_SUM = re.compile(r"(?:atom|red)\..*\badd\..*\bf32\b")


@dataclass(frozen=True)
class CaseChoice:
    """Chooses the cases of one task's candidates. `screen_families` are the forward's in a screen; a GPU runs more. No
    candidate can know the fresh seed."""

    task: Task
    seed: int
    has_gpu: bool
    screen_families: Sequence[str] = SCREEN_FAMILIES
    fresh_seed: int = field(default_factory=lambda: secrets.randbits(FRESH_SEED_BITS))

    def plan(self, prepared: Prepared, direction: OperationKind, depth: Depth) -> Plan:
        """Return the cases of one direction with their launches. The captured sizes come first, to be profiled.

        Raises PlanError when the plan does not bind, ContractError when it excludes the captured sizes.
        """
        kernel = self._kernel(prepared, direction)
        return _bound(kernel, proposed(TABLE, kernel, "plan" if depth == "full" else "screen"))

    def with_code(self, prepared: Prepared, direction: OperationKind, built: Built, plan: Plan) -> Plan:
        """Return the cases of one direction, and those that its compiled code asks for, less those that it need not
        pass."""
        kernel = replace(self._kernel(prepared, direction), compiled=built, plan=plan)
        cases = proposed(TABLE, kernel, "code", [case for case, _ in plan])
        return _bound(kernel, [case for case in cases if case.family != "subnormal" or not flushes(built)])

    def _kernel(self, prepared: Prepared, direction: OperationKind) -> Kernel:
        families = self.screen_families if direction == "forward" else SCREEN_FAMILIES
        return Kernel(prepared, direction, self.seed, self.fresh_seed, self.has_gpu, families)


def flushes(built: Built) -> bool:
    """Check whether a kernel adds f32 atomically outside shared memory: a GPU flushes subnormal numbers there (PTX ISA
    9.0, `atom`), in PyTorch's own atomic additions, too."""
    opcodes = (statement.opcode for statement in read_ptx(built.ptx, "").statements)
    return any(_ATOMIC_SUM.match(opcode) and ".shared" not in opcode for opcode in opcodes)


def _bound(kernel: Kernel, cases: Iterable[Case]) -> Plan:
    return [(case, kernel.prepared.bind(kernel.direction, dict(case.sizes))) for case in cases]
