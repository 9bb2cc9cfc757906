"""The progress of a benchmark on stderr: what runs now on a terminal, a line as each row begins and ends, and the time
that is left."""

from __future__ import annotations

import time

from rich.text import Text

from kernel_lsp.cli import console
from kernel_lsp.core.benchmark import BenchEntry
from kernel_lsp.core.event import CandidateEvaluated, Event, GenerationStarted, NewBest, StageStarted
from kernel_lsp.core.words import counted

MAX_DETAIL = 160
"""Characters of a row's failure in its line; the table at the end has all of it."""


class BenchView:
    """Use as a context manager. `n_kept` of `n_tasks` rows were finished by an earlier start."""

    def __init__(self, n_tasks: int, deadline_s: float, n_kept: int, n_set_aside: int) -> None:
        self._n_tasks, self._n_kept, self._n_done = n_tasks, n_kept, 0
        self._running: dict[str, str] = {}
        self._started = time.monotonic()
        self._status = console.stderr.status("starting")
        self._say(f"{counted(n_tasks, 'task')}, at most {duration(deadline_s)} each (--deadline)")
        if n_kept:
            self._say(f"{n_kept} of them finished in the last start")
        if n_set_aside:
            self._say(f"{counted(n_set_aside, 'row')} of the last start set aside: --resume keeps them")

    def __enter__(self) -> BenchView:
        if console.stderr.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, target: str, event: Event) -> None:
        """Show how far a task is."""
        if target not in self._running:
            self._running[target] = "starting"
            if not console.stderr.is_terminal:
                self._say(f"{target}: started")
        stage = _stage(event, target)
        if stage:
            self._running[target] = stage
            self._status.update(Text("; ".join(f"{name}: {now}" for name, now in self._running.items())))

    def finish(self, entry: BenchEntry) -> None:
        """Print a finished row, and the time that the others may take."""
        self._n_done += 1
        self._running.pop(entry.target, None)
        self._say(f"{self._n_done}/{self._n_tasks} {entry.target}: {_outcome(entry)}{self._left()}")

    def _left(self) -> str:
        n_run, n_left = self._n_done - self._n_kept, self._n_tasks - self._n_done
        if n_run <= 0 or n_left <= 0:
            return ""
        return f"; about {duration((time.monotonic() - self._started) / n_run * n_left)} left"

    def _say(self, text: str) -> None:
        console.stderr.print(text, markup=False)


def duration(seconds: float) -> str:
    """Return seconds or minutes, as a person says them."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _stage(event: Event, target: str) -> str:
    match event:
        case StageStarted():
            return event.message.partition(target)[0].partition(":")[0].strip()
        case GenerationStarted():
            return f"generation {event.generation + 1}/{event.n_generations}"
        case NewBest():
            return f"best {event.score_us:.4g} us ({event.score_kind})"
        case CandidateEvaluated() if event.depth == "screen":
            return "measuring the fastest again" if event.score_kind == "measured" else ""
    return ""


def _outcome(entry: BenchEntry) -> str:
    if entry.status != "verified":
        return f"{entry.status}: {entry.detail[:MAX_DETAIL]}"
    parts = ["verified"]
    if entry.times:
        kind = "" if entry.kind == "measured" else f" ({entry.kind})"
        parts.append(f"{sum(each.ours_us for each in entry.times):.4g} us{kind}")
    if "best" in entry.speedups:
        parts.append(f"{entry.speedups['best']:.2f}x vs PyTorch")
    return ", ".join([*parts, f"{entry.elapsed_s:.0f} s"])
