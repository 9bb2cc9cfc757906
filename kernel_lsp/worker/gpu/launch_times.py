"""The command `time_launches`: microseconds of each launch of an operation, by events around it, with cold caches."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from ..files import read_tensor
from ..timing.subject import stopwatch_of
from .check_commands import guarded
from .run import BoundRun, loaded_candidate, on

N_SAMPLES = 11
SLEEP_US = 20.0
"""Microseconds for which the device waits before a sample, so that the host has enqueued it."""


def time_launches(request: dict[str, Any]) -> dict[str, Any]:
    """Time ``{"candidate", "operation", "inputs": [entries]}``; answers ``{"status": "ran", "launches_us": [median]}``,
    in the order of the operation's launches. Fills and library steps run between them and are not timed. Otherwise the
    status is as `handle_check`'s, with a ``message``."""
    candidate = loaded_candidate(request)

    def timed() -> dict[str, Any]:
        where = on(candidate.device)
        inputs = {entry["name"]: read_tensor(entry, where) for entry in request["inputs"]}
        run, stopwatch = BoundRun(candidate, request["operation"], inputs), stopwatch_of(where.index)
        samples = []
        for _ in range(N_SAMPLES):
            for step, given in zip(run.steps, request["operation"]["steps"]):
                if given["kind"] == "launch":
                    stopwatch.cold_sample([partial(step, run)], SLEEP_US)
                else:
                    step(run)
            samples.append(stopwatch.take())
        return {"status": "ran", "launches_us": [statistics.median(each) for each in zip(*samples)]}

    return guarded(candidate, timed)
