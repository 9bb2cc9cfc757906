"""Attempt one task: draw it, trace it, run it, capture it, and name every filter that drops it.

The cheap filters come first. An attempt depends on its seed and index alone, apart from its measured time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.core.model import Noun
from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Graph, GraphNode, TargetSource
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.synthesize.models import NotComposed, TaskModels, read_signatures
from kernel_lsp.synthesize.request import DEVICE_SCALES, GROWTH, SCALES, SynthesisFolder, SynthesisRequest
from kernel_lsp.verify.task_filters import N_SEEDS, GraphView, judge, redundancies, referred

MAX_SIMILARITY = 0.7
"""Maximum Jaccard index of two tasks' n-grams. A task of four operators that shares three in order has about 0.5."""
TRACE_DEADLINE_S = 60.0


class Trace(Noun):
    """A task's normalized graph: its hash, n-grams of operators, and operators in order. `largest` is in elements of a
    tensor."""

    graph_hash: str
    grams: tuple[str, ...]
    ops: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    largest: int = 0


@dataclass(frozen=True)
class HeldOut:
    """Traces of held-out tasks by target. `untraced` are those that could not be traced, with the reason."""

    traces: dict[str, Trace]
    untraced: dict[str, str] = field(default_factory=dict)

    def nearest(self, trace: Trace) -> tuple[str, float]:
        """Return the most similar held-out task and its similarity: 1 for an equal graph, else the Jaccard index."""
        found = [(similarity(trace, other), target) for target, other in self.traces.items()]
        best, target = max(found, default=(0.0, ""))
        return target, best


def similarity(one: Trace, other: Trace) -> float:
    if one.graph_hash == other.graph_hash:
        return 1.0
    both = set(one.grams) & set(other.grams)
    return len(both) / max(1, len(set(one.grams) | set(other.grams)))


async def trace_target(worker: Worker, target: str, directory: Path) -> Trace:
    """Trace one task. Raises KernelLspError where it cannot be traced."""
    source = read_target(target, directory)
    request = {"source": source.model_dump(mode="json")}
    return Trace.model_validate(await worker.ask("trace_task", request, deadline_s=TRACE_DEADLINE_S))


DRAW_DEADLINE_S = 30.0
EXAMINE_DEADLINE_S = 60.0
FILTERS = (
    *("composed", "traced", "duplicate", "held-out", "runs-eager", "not-finite", "range", "std-over-seeds"),
    *("std-along-axis", "weights-impact", "inputs-impact", "determinism", "runs-compiled", "device-time"),
    *("redundancy", "inefficiency", "opinion"),
)
"""Filters in the order in which they run. A task is dropped by the first that flags it."""
LINEAR = frozenset(("mm", "addmm", "bmm", "linear", "convolution"))
VIEWS = frozenset(("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze"))
SUMS = frozenset(("sum", "mean"))
NORMS = frozenset(("native_layer_norm", "_native_batch_norm_legit", "native_group_norm", "_softmax", "_log_softmax"))
MONOTONE = frozenset(("_softmax", "_log_softmax", "sigmoid", "tanh", "exp", "exp2", "erf", "atan", "asinh", "sinh"))
RANKING = frozenset(("argmax", "argmin", "argsort"))


class Attempt(Noun):
    """One attempt. `dropped_by` is empty for a task that passed every filter but `duplicate`, which is decided in the
    order of the indices. `n_flops` is None for a model's task, `opinion` where no model was asked or answered."""

    index: int
    proposer: str = "rules"
    request_key: str = ""
    text: str = ""
    operators: tuple[str, ...] = ()
    structure: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    n_flops: int | None = 0
    trace: Trace | None = None
    nearest: str = ""
    similarity: float = 0.0
    dropped_by: str = ""
    reason: str = ""
    eager_ms: float | None = None
    device: str = ""
    compiler: str = ""
    is_captured: bool = False
    opinion: float | None = None
    judges: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    """Time of each stage, in seconds."""


Lend = Callable[[], AbstractAsyncContextManager[Worker]]
"""Lends a worker, once one is free."""


class Attempts:
    """Attempts on lent workers. A worker is unusable after a crash or an overrun: its owner replaces it."""

    def __init__(
        self, request: SynthesisRequest, folder: SynthesisFolder, held_out: HeldOut, models: TaskModels | None = None
    ) -> None:
        self._request, self._folder, self._held_out, self._models = request, folder, held_out, models
        self._scale = SCALES[request.scale]
        self._signatures: Mapping[str, str] = read_signatures(folder.catalogue) if models is not None else {}

    async def attempt(self, lend: Lend, index: int, known: set[str]) -> Attempt:
        """Return the attempt of an index; `known` holds graph hashes of tasks that are accepted already. A worker is
        not held while a model is asked. Raises EnvironmentProblem and RepliesAwaited where no model answers."""
        made = _Attempting(Attempt(index=index))
        is_models_turn = self._models is not None and self._models.composes(index)
        try:
            async with lend() as worker:
                await self._drawn(worker, made)
                if not is_models_turn:
                    await self._checked(worker, made, known)
            if is_models_turn:
                await self._composed(made)
                async with lend() as worker:
                    await self._checked(worker, made, known)
            await self._judged(made)
        except _Dropped as dropped:
            made.set(dropped_by=dropped.filter, reason=dropped.reason)
        return made.attempt.model_copy(update={"seconds": made.seconds})

    async def _checked(self, worker: Worker, made: _Attempting, known: set[str]) -> None:
        await self._traced(worker, made, known)
        await self._examined(worker, made)
        await self._captured(worker, made)

    async def _drawn(self, worker: Worker, made: _Attempting) -> None:
        with made.stage("draw"), _dropping("composed"):
            drawn = await worker.ask("draw_task", self._draw_request(made), deadline_s=DRAW_DEADLINE_S)
        if "problem" in drawn:
            raise _Dropped("composed", drawn["problem"])
        made.set(**{key: _frozen(value) for key, value in drawn.items()})
        self._file(made).write_text(made.attempt.text)

    async def _composed(self, made: _Attempting) -> None:
        """Replace the draw by what a model makes of its operators."""
        assert self._models is not None
        drawn = made.attempt
        made.set(proposer=self._models.composer(drawn.index).name)
        with made.stage("compose"):
            try:
                found = await self._models.compose(
                    self._request, drawn.index, self._signatures, drawn.operators, drawn.structure
                )
            except NotComposed as problem:
                raise _Dropped("composed", str(problem)) from None
        made.set(text=found.text, operators=found.operators, proposer=found.model, request_key=found.request_key)
        made.set(n_flops=None)
        self._file(made).write_text(found.text)

    async def _judged(self, made: _Attempting) -> None:
        if self._models is None:
            return
        with made.stage("opinion"):
            opinion = await self._models.opinion(made.attempt.text)
        if opinion is not None:
            made.set(opinion=opinion.probability, judges=opinion.models)
        if not self._models.is_fair(opinion):
            raise _Dropped("opinion", f"a fair baseline with probability {made.attempt.opinion:.2f}")

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
        if made.attempt.request_key:  # a model's: a draw has bounds of its own
            made.set(shapes=trace.shapes)
            most = GROWTH * self._scale.elements[1]
            if trace.largest > most:
                raise _Dropped("traced", f"a tensor has {trace.largest} elements, and {most} are allowed")
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


def inefficiencies(graph: Graph) -> tuple[str, ...]:
    """Return a message for each inefficient step, in the graph's order."""
    view = GraphView(graph)
    return tuple(message for node in graph.nodes for message in _inefficiencies(node, view))


def _inefficiencies(node: GraphNode, view: GraphView) -> Iterator[str]:
    op, inner = base_op(node.op), _inner(node, view)
    of = "" if inner is None else base_op(inner.op)
    is_constant = inner is not None and _has_number(inner)
    if op in LINEAR and of in LINEAR:
        yield f"{op} of {of}: two linear maps in a row are one"
    if op in SUMS and of in LINEAR:
        yield f"{op} of {of}: the weights can be summed instead"
    if op in SUMS and of in SUMS:
        yield "two sums in a row are one"
    if op in NORMS and of in ("add", "sub") and is_constant:
        yield f"{op} removes the constant that is added before"
    if op == of and op in ("add", "mul", "div", "sub") and is_constant and _has_number(node):
        yield f"{op} of two numbers in a row is one"
    if op in RANKING and of in MONOTONE:
        yield f"{op} of {of}, which keeps the order"
    operands = [view.nodes.get(referred(each) or "") for each in node.arguments]
    if op in LINEAR and any(each and base_op(each.op) == "diag_embed" for each in operands):
        yield "product with a diagonal matrix"


def _has_number(node: GraphNode) -> bool:
    return len(node.arguments) > 1 and isinstance(node.arguments[1], int | float)


def _inner(node: GraphNode, view: GraphView) -> GraphNode | None:
    """Return the node that computes the first computed operand, through views; `addmm` has its bias first."""
    found = view.operand(node, 1 if base_op(node.op) == "addmm" else 0)
    return view.through(found, *VIEWS)
