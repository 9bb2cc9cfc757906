"""Report what the measured kernels of recorded replies come to: speed-ups by task, and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PAPER_GEOMEAN = {"forward": 2.13, "backward": 1.12}
"""Speedups of the robust-kbench paper's best kernels against the better of eager and torch.compile."""
SEARCHES = ("evolve", "refine")
"""A search from estimates, and the one that goes on from its kernels as measured: together, what the search found."""
SEARCHED = "evolve and refine"
GROUPS = ("generator", "best-of-n", *SEARCHES)
COMPARED = ("evolve", "best-of-n")
"""At equal budget."""


@dataclass(frozen=True)
class Row:
    """One direction of a task: speed-ups by group against the fastest of PyTorch's ways, and the most that the floor
    allows. `most` is that fastest time through the larger of the task's own floor and an empty kernel's time; infinite
    where neither is known."""

    task: str
    direction: str
    speedups: dict[str, float]
    most: float

    @property
    def allows_paper(self) -> bool:
        """Return True if a kernel could be as much faster as the paper's geomean."""
        return self.most >= PAPER_GEOMEAN[self.direction]


def rows(report: dict[str, Any]) -> list[Row]:
    """All that was measured, by direction; estimates are left out."""
    found = []
    for name, task in report["tasks"].items():
        by_direction: dict[str, dict[str, dict[str, Any]]] = {}
        for group, best in task.get("summary", {}).items():
            for operation, times in best.get("times", {}).items():
                if times["kind"] != "measured":
                    continue
                direction = "backward" if operation.endswith("_backward") else "forward"
                by_direction.setdefault(direction, {})[group] = times
        for direction, times_of in by_direction.items():
            found.append(Row(name, direction, _speedups(times_of), _most(times_of, report.get("empty_kernel_us"))))
    return found


def geomeans(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Report each group over all tasks; of what the searches found, over all tasks and over those whose floor allows
    the paper's figure; and of search and best-of-n over the tasks that have both, at equal budget."""
    means = []
    for direction in PAPER_GEOMEAN:
        ours = [row for row in rows(report) if row.direction == direction]
        both = [row for row in ours if all(name in row.speedups for name in COMPARED)]
        allowed = [row for row in ours if row.allows_paper]
        means += [_geomean(group, group, direction, ours) for group in (*GROUPS, SEARCHED)]
        means.append(_geomean(f"{SEARCHED}, floor allows", SEARCHED, direction, allowed))
        means += [_geomean(f"{name}, tasks with both", name, direction, both) for name in COMPARED]
    return [mean for mean in means if mean["n"]]


def print_report(report: dict[str, Any]) -> None:
    """A table of the tasks, then the means."""
    heads = "".join(f"{group:>11}" for group in GROUPS)
    print(f"\n{'task':<22}{'direction':<10}{heads}{'floor':>9}   times the fastest of PyTorch's ways")
    for row in rows(report):
        cells = [row.speedups.get(group) for group in GROUPS]
        shown = "".join(f"{cell:>11.2f}" if cell else f"{'-':>11}" for cell in cells)
        print(f"{row.task:<22}{row.direction:<10}{shown}{row.most:>9.2f}")
    for mean in geomeans(report):
        paper = f"(the paper's best: {PAPER_GEOMEAN[mean['direction']]})"
        print(f"geomean {mean['of']:<32} {mean['direction']:<9} {mean['speedup']:.2f} over {mean['n']} tasks {paper}")


# --- below: one row, one mean


def _speedups(times_of: dict[str, dict[str, Any]]) -> dict[str, float]:
    speedups = {group: times["speedup"] for group, times in times_of.items()}
    searched = [speedups[name] for name in SEARCHES if name in speedups]
    return {**speedups, **({SEARCHED: max(searched)} if searched else {})}


def _most(times_of: dict[str, dict[str, Any]], empty_kernel_us: float | None) -> float:
    floors = [times["floor_us"] for times in times_of.values() if times["floor_us"]]
    floor_us = max([*floors, empty_kernel_us or 0.0])
    fastest_us = min(min(times["baselines_us"].values()) for times in times_of.values())
    return fastest_us / floor_us if floor_us else math.inf


def _geomean(of: str, group: str, direction: str, found: Sequence[Row]) -> dict[str, Any]:
    speedups = [row.speedups[group] for row in found if group in row.speedups]
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else math.nan
    return {"of": of, "direction": direction, "speedup": mean, "n": len(speedups)}
