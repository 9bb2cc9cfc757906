"""The configurations of a task's folder: those that one capture covers, and the others, each with a capture of its own.

A configuration with another constant or dtype is another task. A candidate that is correct there unchanged serves it.
For any other the verdict says so, and the operator made from the candidate falls back to PyTorch there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kernel_lsp.core.target import TargetSource
from kernel_lsp.core.task import Task, UncoveredConfiguration
from kernel_lsp.core.verdict import ConfigurationOutcome, Crashed, TimedOut, Verdict
from kernel_lsp.errors import TargetError
from kernel_lsp.verify.session.platform import Platform

ConfigurationVerdict = tuple[UncoveredConfiguration, Verdict | TargetError]
"""A candidate's verdict in a configuration, or why that could not be captured."""


class UncoveredCaptures:
    """Captures the configurations that the task's own capture does not cover, each once for all candidates."""

    def __init__(self, source: TargetSource, task: Task, platform: Platform) -> None:
        self._source, self._task, self._platform = source, task, platform
        self._known: dict[int, Task | TargetError] = {}
        self._capturing = asyncio.Lock()

    async def captured(self, other: UncoveredConfiguration) -> Task | TargetError:
        """Return the configuration as a task, or why it has none. Raises EnvironmentProblem for a broken machine."""
        async with self._capturing:
            if other.index not in self._known:
                self._known[other.index] = await self._capture(other.index)
        return self._known[other.index]

    async def _capture(self, index: int) -> Task | TargetError:
        with_backward = self._task.backward is not None
        try:
            return await self._platform.worker.capture(self._source, with_backward=with_backward, configuration=index)
        except TargetError as error:
            return error


def with_configurations(verdict: Verdict, task: Task, others: Sequence[ConfigurationVerdict]) -> Verdict:
    """Return a correct `verdict` with the candidate's outcome in every configuration.

    A candidate that crashes or hangs in one is at fault. One that is incorrect in another than the first does not serve
    that one.
    """
    served = [ConfigurationOutcome(name=c.name, is_served=True) for c in task.configurations]
    found = (*served, *(_outcome(*other) for other in others))
    outcomes = [each.outcome for _, each in others if isinstance(each, Verdict)]
    faults = [outcome for outcome in outcomes if isinstance(outcome, Crashed | TimedOut)]
    changes = {"configurations": found if len(found) > 1 else ()}
    return verdict.model_copy(update={**changes, "outcome": faults[0]} if faults else changes)


# --- below


def _outcome(other: UncoveredConfiguration, found: Verdict | TargetError) -> ConfigurationOutcome:
    if isinstance(found, TargetError):
        return ConfigurationOutcome(name=other.name, is_served=False, message=found.message)
    message = "" if found.is_correct else f"{_words(found)}; {other.reason}"
    return ConfigurationOutcome(name=other.name, is_served=found.is_correct, message=message)


def _words(verdict: Verdict) -> str:
    outcome = verdict.outcome
    if outcome.kind == "build_failed":
        return outcome.findings[0].message if outcome.findings else "it does not build"
    return getattr(outcome, "message", outcome.kind)
