"""Account for the time of a load test: by evaluation, by slot, and processor time by kind of process."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.process.tree import descendants
from tests.verify.gpu.light_worker import case_seconds

SAMPLE_S = 2.0
"""Seconds between two looks at the processors' times: a process that lives shorter may be missed."""
LAG_S = 0.02
ROLES = {
    "ray::Slot": "actors",
    "_bridge.py": "bridge",
    "relay\0exec": "relays",
    "light_worker": "workers",
    "confined_worker": "workers",
    "--serve-nodes": "benchmark's nodes",
    "raylet/raylet": "raylets",
    "gcs_server": "head",
    "ray::IDLE": "idle actors",
    "default_worker": "starting actors",
    "agent": "agents",
    "ray_load.py": "command",
}
"""Kinds of processes by a part of their command line. The first one that fits counts."""
OF_SLOTS = {"actors", "relays", "workers"}
NODES_CLASS, SLOTS_CLASS = 1, 2
"""Real-time priorities of an undisturbed run."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Try:
    """One evaluation on one slot, in seconds of the monotonic clock. `outcome` is ``undisturbed``, ``disturbed`` when
    the slot's worker was replaced meanwhile, or ``given up`` when another slot took the candidate."""

    number: int
    slot: int
    started: float
    ended: float
    stages_s: Mapping[str, float]
    outcome: str

    @property
    def occupied_s(self) -> float:
        """Return the seconds for which it had the slot."""
        return self.ended - self.started - self.stages_s.get("gpu wait", 0.0)


@dataclass
class Trace:
    """Every try, and the times of the kills."""

    mean_case_s: float
    tries: list[Try] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    def case_s(self, number: int) -> float:
        """Return the seconds that the GPU sleeps for a candidate."""
        return case_seconds(self.mean_case_s, f"affine_{number}")

    async def watch_the_loop(self) -> None:
        """Record how late the event loop wakes a sleeper, until cancelled."""
        while True:
            due = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            self.lags_s.append(time.monotonic() - due)

    def evaluations(self) -> dict[int, list[Try]]:
        """Return the tries of each evaluation that has ended."""
        found: dict[int, list[Try]] = defaultdict(list)
        for each in self.tries:
            found[each.number].append(each)
        return {number: tries for number, tries in found.items() if tries[-1].outcome != "given up"}

    def n_results(self) -> Counter[int]:
        """Return the number of results of each evaluation."""
        return Counter(each.number for each in self.tries if each.outcome != "given up")

    def summary(self, n_slots: int) -> dict[str, Any]:
        """Return overheads by kind, stages of the undisturbed evaluations, and what the slots' time went to."""
        overheads: dict[bool, list[float]] = defaultdict(list)
        stages: dict[str, list[float]] = defaultdict(list)
        for number, tries in self.evaluations().items():
            is_undisturbed = len(tries) == 1 and tries[0].outcome == "undisturbed"
            overheads[is_undisturbed].append(sum(each.occupied_s for each in tries) - self.case_s(number))
            if is_undisturbed:
                for stage, stage_s in self._stages(tries[0]).items():
                    stages[stage].append(stage_s)
        return {
            "overhead_ms": spread_ms(overheads[True]),
            "overhead_of_disturbed_ms": spread_ms(overheads[False]),
            "stages_ms": {stage: spread_ms(seen) for stage, seen in stages.items()},
            "loop_lag_ms": spread_ms(self.lags_s),
            "of_slots": self.of_slots(n_slots),
            "kills": [(round(at - self.began, 2), kind) for at, kind in self.kills],
        }

    def _stages(self, each: Try) -> dict[str, float]:
        """Return the stages of a try. Of a case it gives the oversleeping, and the ways there and back."""
        ours = {name: stage_s for name, stage_s in each.stages_s.items() if not name.startswith("gpu cases")}
        on_gpu_s = each.stages_s["gpu cases: sleep"]
        ours["gpu cases, slept too long"] = on_gpu_s - self.case_s(each.number)
        ours["gpu cases, ways"] = each.stages_s["gpu cases"] - on_gpu_s
        ours["other"] = (
            each.occupied_s
            - each.stages_s["gpu cases"]
            - sum(stage_s for name, stage_s in each.stages_s.items() if name in ("gpu worker", "gpu load", "gpu again"))
        )
        return ours

    def of_slots(self, n_slots: int) -> dict[str, float]:
        """Return the shares of the slots' time between the first start and the last end, in percent."""
        spent: Counter[str] = Counter()
        last_ends = dict.fromkeys(range(n_slots), self.began)
        for each in self.tries:
            last_ends[each.slot] = max(last_ends[each.slot], each.ended)
            if each.outcome == "given up":
                spent["given up"] += each.occupied_s
            else:
                spent["cases"] += self.case_s(each.number)
                spent[f"overhead, {each.outcome}"] += each.occupied_s - self.case_s(each.number)
        spent["at the end, without work"] = sum(self.ended - end for end in last_ends.values())
        whole_s = n_slots * (self.ended - self.began)
        spent["idle before"] = whole_s - sum(spent.values())
        return {name: 100 * spent_s / whole_s for name, spent_s in spent.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return every try, with times from the begin on."""
        return [
            {**asdict(each), "started": each.started - self.began, "ended": each.ended - self.began}
            for each in self.tries
        ]


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return number, median, mean, 90th percentile and maximum."""
    if not seconds:
        return {"n": 0}
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "median": 1e3 * statistics.median(ordered),
        "mean": 1e3 * statistics.fmean(ordered),
        "p90": 1e3 * ordered[int(0.9 * len(ordered))],
        "max": 1e3 * ordered[-1],
    }


class Processors:
    """Processor seconds of a process and its descendants, by kind, from a thread that looks every few seconds."""

    def __init__(self, root: int, *, is_undisturbed: bool) -> None:
        """`is_undisturbed`: slots that start after `begin` run before Ray's nodes, as those that were there do."""
        self._root, self._first, self._last = root, dict[tuple[int, str], float](), dict[tuple[int, str], float]()
        self._is_undisturbed, self._has_begun = is_undisturbed, False
        self._roles: dict[tuple[int, str], str] = {}
        self._load: list[float] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def begin(self) -> None:
        """Count from now on."""
        self._last, self._load = {}, []
        self._look()
        self._first, self._has_begun = dict(self._last), True

    def found(self) -> dict[str, Any]:
        """Return seconds by kind since the begin, and the load averages seen."""
        self._look()
        spent: Counter[str] = Counter()
        for key, at in self._last.items():
            spent[self._roles[key]] += at - self._first.get(key, 0.0)
        return {"processor_s": dict(spent), "loads": self._load}

    def _follow(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            self._look()

    def _look(self) -> None:
        self._load.append(round(os.getloadavg()[0], 1))
        for pid in (self._root, *descendants(self._root)):
            with suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                key = (pid, fields[19])
                self._last[key] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
                if self._roles.get(key, "starting actors") in ("starting actors", "idle actors"):
                    self._roles[key] = _role(pid)
                    if self._is_undisturbed and self._has_begun and self._roles[key] in OF_SLOTS:
                        run_before_others(pid, SLOTS_CLASS)


def run_before_others(pid: int, priority: int) -> None:
    """Put a process into the real-time class. What it starts inherits that."""
    with suppress(OSError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(priority))


def _role(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return next((role for part, role in ROLES.items() if part in words), "others")
