"""Measured times of schedules: what the recorded environment replays, and what cost model and policy learn from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from kernel_lsp.core.model import Noun
from kernel_lsp.training.features import candidate_features
from kernel_lsp.training.policy import Array

MAX_ERROR = 1e-2
"""Maximum relative L2 error against fp64 of a schedule that counts as correct. Incorrect texts are off by far more,
texts of rounded types by less."""


class TimedSchedule(Noun):
    """One schedule. `time_us` is None where the text failed; `features` are those of `schedule_features`."""

    schedule: dict[str, int | str]
    time_us: float | None
    error: float = 0.0
    features: dict[str, float]

    @property
    def is_correct(self) -> bool:
        return self.time_us is not None and self.error <= MAX_ERROR


class TimedTask(Noun):
    """One task with its schedules, the default first. `graph` is equal for the same graph at other sizes; `family` for
    graphs with the same kinds of operators. `baselines_us` are the times of PyTorch: eager and modes of compile."""

    name: str
    graph: str
    family: str
    features: dict[str, float]
    baselines_us: dict[str, float] = {}
    schedules: tuple[TimedSchedule, ...]

    @cached_property
    def correct(self) -> tuple[TimedSchedule, ...]:
        """Return the schedules that ran and were correct."""
        return tuple(each for each in self.schedules if each.is_correct)

    @cached_property
    def times_us(self) -> Array:
        """Return the times of the correct schedules."""
        return np.array([each.time_us for each in self.correct], dtype=float)

    def find(self, schedule: Mapping[str, int | str]) -> TimedSchedule | None:
        """Return the recorded schedule with these choices."""
        return next((each for each in self.schedules if each.schedule == dict(schedule)), None)


class ScheduleTable(Noun):
    """The times of many tasks on one GPU."""

    gpu: str
    torch: str = ""
    command: str = ""
    tasks: tuple[TimedTask, ...]

    @staticmethod
    def read(path: Path) -> ScheduleTable:
        return ScheduleTable.model_validate_json(path.read_text(encoding="utf-8"))

    def write(self, path: Path) -> None:
        """Write one line per schedule, so that versions of the file differ by lines."""
        head = self.model_dump(mode="json", exclude={"tasks"})
        tasks = ",\n".join(_task_text(task) for task in self.tasks)
        text = json.dumps(head)[:-1] + f', "tasks": [\n{tasks}\n]}}\n'
        path.write_text(text, encoding="utf-8")

    def usable(self) -> tuple[TimedTask, ...]:
        """Return the tasks with a correct default and at least two more correct schedules."""
        return tuple(t for t in self.tasks if t.schedules and t.schedules[0].is_correct and len(t.correct) > 2)


def matrix(task: TimedTask, names: Sequence[str]) -> Array:
    """Return the features of the task's correct schedules, a row each, in the order of `names`."""
    default = task.schedules[0].features
    rows = [candidate_features(task.features, each.features, default) for each in task.correct]
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=float)


def feature_names(tasks: Iterable[TimedTask]) -> list[str]:
    """Return the names of all features that a schedule of these tasks has; a missing one is 0."""
    found: set[str] = set()
    for task in tasks:
        for each in task.schedules:
            found |= candidate_features(task.features, each.features, task.schedules[0].features).keys()
    return sorted(found)


def _task_text(task: TimedTask) -> str:
    head = json.dumps(task.model_dump(mode="json", exclude={"schedules"}))[:-1]
    schedules = ",\n".join(json.dumps(each.model_dump(mode="json")) for each in task.schedules)
    return f'{head}, "schedules": [\n{schedules}]}}'
