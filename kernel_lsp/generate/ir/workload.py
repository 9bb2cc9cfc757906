"""The workload that schedules are chosen for: the captured sizes on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.core.expression import Expression, evaluate, evaluate_int, free_names
from kernel_lsp.core.task import Task
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.sizes import to_expression

AMPERE, HOPPER = (8, 0), (9, 0)
"""Minimum compute capabilities: the first for `mma.sync` of TF32 and `cp.async`, the second for clusters."""
DEFAULT_MULTIPROCESSORS = 132


@dataclass(frozen=True, eq=False)
class Workload:
    """The sizes of a task as captured, and the GPU that runs it: an H200 where none is named. They decide the defaults
    of knobs, never correctness; only `capability` decides which instructions kernels may use."""

    sizes: Mapping[str, int]
    n_multiprocessors: int = DEFAULT_MULTIPROCESSORS
    capability: tuple[int, int] = HOPPER

    @classmethod
    def of(cls, task: Task, gpu: object | None) -> Workload:
        """Return a task's workload on a GPU, of which `n_sms` and the architecture's capability are read."""
        return cls(
            {symbol.name: symbol.captured for symbol in task.symbols},
            int(getattr(gpu, "n_sms", DEFAULT_MULTIPROCESSORS)),
            getattr(getattr(gpu, "architecture", None), "capability", HOPPER),
        )

    def meets(self, condition: Expression) -> bool:
        """Return True if the captured sizes meet the condition, or it is of a number that a call alone has."""
        return not free_names(condition) <= self.sizes.keys() or bool(evaluate(condition, self.sizes))

    def size(self, index: Index) -> int:
        """Return a size as captured."""
        return evaluate_int(to_expression(index), self.sizes)
