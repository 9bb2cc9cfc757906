"""Results of the task filters: whether a task is worth measuring kernels on."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import SCHEMA_VERSION, Noun

FilterStatus = Literal["passed", "flagged", "skipped"]


class FilterResult(Noun):
    """One filter on one configuration. `number` is the measured value and `threshold` its limit; None where the filter
    has none. A skipped filter gives its reason in `message`."""

    filter: str
    configuration: str
    status: FilterStatus
    number: float | None = None
    threshold: float | None = None
    message: str = ""
    line: int | None = None


class TaskFilters(Noun):
    """All filters on one task. `refused` is the reason why the task could not be examined; empty when it could."""

    target: str
    device: str = ""
    configurations: tuple[str, ...] = ()
    results: tuple[FilterResult, ...] = ()
    refused: str = ""

    @property
    def flagged(self) -> tuple[FilterResult, ...]:
        return tuple(result for result in self.results if result.status == "flagged")

    @property
    def is_good(self) -> bool:
        return not self.refused and not self.flagged


class FilterReport(Noun):
    """Filter results of several tasks."""

    schema_version: int = SCHEMA_VERSION
    tasks: tuple[TaskFilters, ...]

    @property
    def n_good(self) -> int:
        return sum(task.is_good for task in self.tasks)
