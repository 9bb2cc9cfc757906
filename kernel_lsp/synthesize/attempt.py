"""Attempt one task: draw it, trace it, run it, capture it, and name every filter that drops it.

The cheap filters come first. An attempt depends on its seed and index alone, apart from its measured time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernel_lsp.core.model import Noun
from kernel_lsp.core.target import TargetSource
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.synthesize.held_out import MAX_SIMILARITY, HeldOut, Trace, trace_target
from kernel_lsp.synthesize.inefficiency import inefficiencies
from kernel_lsp.synthesize.request import DEVICE_SCALES, SCALES, SynthesisFolder, SynthesisRequest
from kernel_lsp.verify.tasks.filters import N_SEEDS, judge
from kernel_lsp.verify.tasks.redundancy import redundancies

DRAW_DEADLINE_S = 30.0
EXAMINE_DEADLINE_S = 60.0
FILTERS = (
    *("composed", "traced", "duplicate", "held-out", "runs-eager", "not-finite", "range", "std-over-seeds"),
    *("std-along-axis", "weights-impact", "inputs-impact", "determinism", "runs-compiled", "device-time"),
    *("redundancy", "inefficiency"),
)
"""Filters in the order in which they run. A task is dropped by the first that flags it."""


class Attempt(Noun):
    """One attempt. `dropped_by` is empty for a task that passed every filter but `duplicate`, which is decided in the
    order of the indices."""

    index: int
    proposer: str = "rules"
    text: str = ""
    operators: tuple[str, ...] = ()
    structure: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    n_flops: int = 0
    trace: Trace | None = None
    nearest: str = ""
    similarity: float = 0.0
    dropped_by: str = ""
    reason: str = ""
    eager_ms: float | None = None
    device: str = ""
    compiler: str = ""
    is_captured: bool = False
    seconds: dict[str, float] = {}
    """Time of each stage, in seconds."""


class Attempts:
    """Attempts on one worker. The worker is unusable after a crash or an overrun: its owner replaces it."""

    def __init__(self, request: SynthesisRequest, folder: SynthesisFolder, held_out: HeldOut) -> None:
        self._request, self._folder, self._held_out = request, folder, held_out
        self._scale = SCALES[request.scale]

    async def attempt(self, worker: Worker, index: int, known: set[str]) -> Attempt:
        """Return the attempt of an index; `known` holds graph hashes of tasks that are accepted already."""
        made = _Attempting(Attempt(index=index))
        try:
            await self._drawn(worker, made)
            await self._traced(worker, made, known)
            await self._examined(worker, made)
            await self._captured(worker, made)
        except _Dropped as dropped:
            made.set(dropped_by=dropped.filter, reason=dropped.reason)
        return made.attempt.model_copy(update={"seconds": made.seconds})

    async def _drawn(self, worker: Worker, made: _Attempting) -> None:
        with made.stage("draw"), _dropping("composed"):
            drawn = await worker.ask("draw_task", self._draw_request(made), deadline_s=DRAW_DEADLINE_S)
        if "problem" in drawn:
            raise _Dropped("composed", drawn["problem"])
        made.set(**{key: _frozen(value) for key, value in drawn.items()})
        self._file(made).write_text(made.attempt.text)

    def _draw_request(self, made: _Attempting) -> dict[str, Any]:
        return {
            "catalogue": str(self._folder.catalogue.absolute()),
            "seed": self._request.seed,
            "index": made.attempt.index,
            "elements": list(self._scale.elements),
            "max_flops": self._scale.max_flops,
            "max_operators": self._request.max_operators,
        }

    async def _traced(self, worker: Worker, made: _Attempting, known: set[str]) -> None:
        with made.stage("trace"), _dropping("traced"):
            trace = await trace_target(worker, str(self._file(made)), self._folder.root)
        nearest, similarity = self._held_out.nearest(trace)
        operators = made.attempt.operators or trace.ops
        made.set(trace=trace, nearest=nearest, similarity=similarity, operators=operators)
        if trace.graph_hash in known:
            raise _Dropped("duplicate", "an earlier task has the same graph")
        if similarity > MAX_SIMILARITY:
            raise _Dropped("held-out", f"{similarity:.2f} like {nearest}")

    async def _examined(self, worker: Worker, made: _Attempting) -> None:
        request = {"source": self._source(made).model_dump(mode="json"), "n_seeds": N_SEEDS, "seed": self._request.seed}
        request |= {"configuration": 0, "compiler": self._request.compiler}
        with made.stage("examine"), _dropping("runs-eager"):
            facts = await worker.ask("examine_task", request, deadline_s=EXAMINE_DEADLINE_S)
        made.set(eager_ms=facts["eager_ms"], device=facts["device"], compiler=facts["compiler"])
        flagged = {result.filter: result.message for result in judge("", facts) if result.status == "flagged"}
        flagged.pop("eager-time", None)  # a GPU's bounds; the scale's hold instead
        if facts["idle_modules"]:
            flagged["redundancy"] = facts["idle_modules"][0]
        low, high = SCALES[DEVICE_SCALES.get(facts["device"], "cuda")].eager_ms
        if not low <= facts["eager_ms"] <= high:
            flagged["device-time"] = f"eager takes {facts['eager_ms']:.3g} ms, and {low:g} to {high:g} are allowed"
        for name in FILTERS:
            if name in flagged:
                raise _Dropped(name, flagged[name])

    async def _captured(self, worker: Worker, made: _Attempting) -> None:
        """Apply the graph's rules. A task that cannot be captured passes them: nothing was found."""
        try:
            with made.stage("capture"):
                task = await worker.capture(self._source(made), with_backward=False)
        except KernelLspError as error:
            if not worker.is_alive:
                raise _Dropped("traced", error.message) from None
            return
        made.set(is_captured=True)
        if found := redundancies(task.forward):
            raise _Dropped("redundancy", found[0].message)
        if slow := inefficiencies(task.forward):
            raise _Dropped("inefficiency", slow[0])

    def _file(self, made: _Attempting) -> Path:
        return self._folder.drafts.absolute() / f"task_{made.attempt.index}.py"

    def _source(self, made: _Attempting) -> TargetSource:
        return read_target(str(self._file(made)), self._folder.root)


# --- below: state


class _Dropped(Exception):
    """A filter dropped the task."""

    def __init__(self, filter_: str, reason: str) -> None:
        super().__init__(reason)
        self.filter, self.reason = filter_, reason


class _Attempting:
    """An attempt while it is made."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.seconds: dict[str, float] = {}

    def set(self, **changes: Any) -> None:
        self.attempt = self.attempt.model_copy(update=changes)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 4)


@contextmanager
def _dropping(filter_: str) -> Iterator[None]:
    """Turn an error of the task's code into its drop."""
    try:
        yield
    except KernelLspError as error:
        raise _Dropped(filter_, error.message) from None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
