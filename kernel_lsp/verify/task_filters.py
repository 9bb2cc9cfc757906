"""Filter tasks by the criteria of robust-kbench [arXiv 2509.14279] and of CUDA Agent's data synthesis [2602.24286], and
find redundant work in a task's graph: duplicates, dead results, operations without effect.

The worker measures (`worker/task_facts.py`); the thresholds are here. A flagged task can be beaten by a kernel that
does less than it should: a constant, a copy, a formula without the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings
from kernel_lsp.core.benchmark import FilterResult, TaskFilters
from kernel_lsp.core.operators import base_op, is_a
from kernel_lsp.core.task import Graph, GraphNode, TargetSource, names_in
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target

MIN_RANGE = 0.01
"""Half-width of the range in which all outputs pass any usual tolerance when they are zero (robust-kbench)."""
MIN_STD = 0.01
"""Minimum standard deviation over seeds, and along an axis (robust-kbench)."""
MIN_IMPACT = 0.01
"""Minimum change of any output under other weights or inputs: the same tolerance as for the range."""
MIN_EAGER_MS, MAX_EAGER_MS = 1.0, 100.0
"""CUDA Agent's bounds in milliseconds: below, launches are measured; above, a search takes too long."""
MAX_BACKWARD_ERROR, DEFAULT_BACKWARD_ERROR = {"float16": 2e-2, "bfloat16": 1e-1}, 1e-3
"""Maximum relative L2 error by the gradients' dtype: a wrong formula exceeds it, another order of sums does not."""
N_SEEDS = 5
"""Seeds, as many as robust-kbench's correctness check draws."""
EXAMINE_DEADLINE_S = 300.0
COUNT_DEADLINE_S = 60.0

Facts = Mapping[str, Any]


async def filter_targets(targets: Sequence[str], directory: Path, settings: Settings) -> tuple[TaskFilters, ...]:
    """Apply every filter to every configuration of every target, in order. A problem with one target is reported for
    that target alone.

    Raises EnvironmentProblem when there is no interpreter with torch.
    """
    python, found = await find_python(settings.python), []
    remaining = list(targets)
    while remaining:
        async with _worker(python, settings) as worker:
            while remaining and worker.is_alive:
                found.append(await _filter_target(worker, remaining.pop(0), directory, settings))
    return tuple(found)


def _worker(python: Path, settings: Settings) -> Worker:
    """Return a worker for many targets. One that a target's code killed or that timed out is replaced."""
    return Worker(
        python,
        capture_deadline_s=settings.capture_deadline_s,
        cache=settings.cache_directory,
        sandbox=sandbox_level(settings.sandbox),
    )


async def _filter_target(worker: Worker, target: str, directory: Path, settings: Settings) -> TaskFilters:
    try:
        source = read_target(target, directory)
        request = {"source": source.model_dump(mode="json")}
        names = (await worker.ask("count_configurations", request, deadline_s=COUNT_DEADLINE_S))["names"]
        facts = [
            await worker.ask(
                "examine_task",
                {**request, "configuration": index, "n_seeds": N_SEEDS, "seed": settings.seed},
                deadline_s=EXAMINE_DEADLINE_S,
            )
            for index in range(len(names))
        ]
    except KernelLspError as error:
        return TaskFilters(target=target, refused=str(error).splitlines()[0])
    results = [result for name, fact in zip(names, facts, strict=True) for result in judge(name, fact)]
    results += await _redundancy(worker, source, facts[0])
    return TaskFilters(target=target, device=facts[0]["device"], configurations=tuple(names), results=tuple(results))


def judge(configuration: str, facts: Facts) -> tuple[FilterResult, ...]:
    """Apply the filters that need only the facts of one configuration (`worker.task_facts.examine_task`)."""
    rules = (_not_finite, _range, _seeds, _axes, _weights, _inputs, _determinism, _backward, _compile, _eager_time)
    return tuple(result.model_copy(update={"configuration": configuration}) for rule in rules for result in rule(facts))


def _result(
    name: str, number: float | None, threshold: float | None, *, is_flagged: bool, message: str
) -> FilterResult:
    return FilterResult(
        filter=name,
        configuration="",
        status="flagged" if is_flagged else "passed",
        number=number,
        threshold=threshold,
        message=message if is_flagged else "",
    )


def _skipped(name: str, reason: str) -> FilterResult:
    return FilterResult(filter=name, configuration="", status="skipped", message=reason)


def _not_finite(facts: Facts) -> Iterator[FilterResult]:
    for output in facts["outputs"]:
        share = output["n_not_finite"] / max(1, output["n_elements"])
        message = f"'{output['name']}' has NaNs or infinities"
        yield _result("not-finite", share, 0.0, is_flagged=share > 0, message=message)


def _range(facts: Facts) -> Iterator[FilterResult]:
    for output in facts["outputs"]:
        message = f"every element of '{output['name']}' is within ±{MIN_RANGE}"
        yield _result("range", output["largest"], MIN_RANGE, is_flagged=output["largest"] <= MIN_RANGE, message=message)


def _seeds(facts: Facts) -> Iterator[FilterResult]:
    for output in facts["outputs"]:
        std = output["std_over_seeds"]
        message = f"'{output['name']}' is nearly the same for {N_SEEDS} other inputs"
        yield _result("std-over-seeds", std, MIN_STD, is_flagged=std < MIN_STD, message=message)


def _axes(facts: Facts) -> Iterator[FilterResult]:
    for output in facts["outputs"]:
        known = [(std, axis) for axis, std in enumerate(output["std_along_axes"]) if std is not None]
        if not known:
            yield _skipped("std-along-axis", f"'{output['name']}' has no axis of more than one element")
            continue
        std, axis = min(known)
        message = f"'{output['name']}' hardly differs along its axis {axis}"
        yield _result("std-along-axis", std, MIN_STD, is_flagged=std < MIN_STD, message=message)


def _weights(facts: Facts) -> Iterator[FilterResult]:
    if facts["all_weights"] is None:
        yield _skipped("weights-impact", "the task has no weights")
        return
    idle = [weight["name"] for weight in facts["weights"] if weight["impact"] < MIN_IMPACT]
    least = min([facts["all_weights"], *(weight["impact"] for weight in facts["weights"])])
    if facts["all_weights"] < MIN_IMPACT:
        message = "no output depends on the weights"
    else:
        message = f"no output depends on {', '.join(idle)}"
    yield _result("weights-impact", least, MIN_IMPACT, is_flagged=least < MIN_IMPACT, message=message)


def _inputs(facts: Facts) -> Iterator[FilterResult]:
    for given in facts["inputs"]:
        message = f"no output depends on the input '{given['name']}'"
        yield _result(
            "inputs-impact", given["impact"], MIN_IMPACT, is_flagged=given["impact"] < MIN_IMPACT, message=message
        )


def _determinism(facts: Facts) -> Iterator[FilterResult]:
    message = "two calls with the same inputs give other results"
    yield _result("determinism", None, None, is_flagged=not facts["is_deterministic"], message=message)


def _backward(facts: Facts) -> Iterator[FilterResult]:
    """Compare the backward of a folder that has its own; other tasks have none to disagree with."""
    error, problem = facts["backward"]["error"], facts["backward"]["problem"]
    if problem:
        yield _result("backward", None, None, is_flagged=True, message=f"its own backward: {problem}")
    elif error is not None:
        allowed = MAX_BACKWARD_ERROR.get(facts["backward"]["dtype"], DEFAULT_BACKWARD_ERROR)
        message = "its own backward gives other gradients than its forward"
        yield _result("backward", error, allowed, is_flagged=not error <= allowed, message=message)


def _compile(facts: Facts) -> Iterator[FilterResult]:
    message = f"it does not run under torch.compile ({facts['compiler']}): {facts['compile_error']}"
    yield _result("runs-compiled", None, None, is_flagged=bool(facts["compile_error"]), message=message)


def _eager_time(facts: Facts) -> Iterator[FilterResult]:
    time_ms = facts["eager_ms"]
    if facts["device"] == "CPU":
        yield _skipped("eager-time", "needs a GPU")
        return
    is_short = time_ms < MIN_EAGER_MS
    message = f"eager takes {'less' if is_short else 'more'} than {MIN_EAGER_MS if is_short else MAX_EAGER_MS:g} ms"
    threshold = MIN_EAGER_MS if is_short else MAX_EAGER_MS
    yield _result("eager-time", time_ms, threshold, is_flagged=is_short or time_ms > MAX_EAGER_MS, message=message)


async def _redundancy(worker: Worker, source: TargetSource, facts: Facts) -> list[FilterResult]:
    """Examine the captured graph, once for all configurations: only numbers differ between them."""
    name = "redundancy"
    try:
        task = await worker.capture(source, with_backward=False)
    except KernelLspError as error:
        return [_skipped(name, f"it cannot be captured: {error.message}")]
    found = [(r.message, r.line) for r in redundancies(task.forward)]
    found += [(idle, None) for idle in facts["idle_modules"]]
    if not found:
        return [_result(name, 0.0, 0.0, is_flagged=False, message="")]
    return [
        _result(name, float(len(found)), 0.0, is_flagged=True, message=message).model_copy(update={"line": line})
        for message, line in found
    ]


INVERSES = {"log": "exp", "exp": "log"}
SOFTMAX, LOG_SOFTMAX = "_softmax", "_log_softmax"


@dataclass(frozen=True)
class Redundancy:
    """One piece of redundant work. `line` is the user's, None where the capture has none."""

    kind: str
    message: str
    line: int | None = None


def redundancies(graph: Graph) -> tuple[Redundancy, ...]:
    """Return the redundancies in the graph's order, each node once."""
    view = GraphView(graph)
    found: dict[str, Redundancy] = {}
    for node in graph.nodes:
        for rule in _RULES:
            message = rule(node, view) if node.name not in found else ""
            if message:
                kind = rule.__name__.removeprefix("_").replace("_", "-")
                found[node.name] = Redundancy(kind, message, node.source.line if node.source else None)
    return tuple(found.values())


class GraphView:
    """The graph by name, with the users of each node."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.results = {output.node for output in graph.outputs}
        self.first: dict[str, str] = {}
        """The first node of each content."""
        for node in graph.nodes:
            self.first.setdefault(_content(node), node.name)
        self.used = {name for node in graph.nodes for name in names_in((node.arguments, node.keywords))}

    def operand(self, node: GraphNode, position: int = 0) -> GraphNode | None:
        """Return the node that computes an operand, through views; None for an input or a number."""
        if position >= len(node.arguments):
            return None
        found = referred(node.arguments[position])
        while found in self.nodes and is_a(self.nodes[found].op, "identity"):
            found = referred(self.nodes[found].arguments[0])
        return self.nodes.get(found) if found is not None else None

    def through(self, node: GraphNode | None, *names: str) -> GraphNode | None:
        """Skip operations of these names upstream."""
        while node is not None and base_op(node.op) in names:
            node = self.operand(node)
        return node


def _content(node: GraphNode) -> str:
    return json.dumps([node.op, node.arguments, node.keywords], sort_keys=True, default=str)


def referred(value: Any) -> str | None:
    return str(value["node"]) if isinstance(value, dict) and "node" in value else None


def _dims(node: GraphNode, position: int = 1) -> tuple[int, ...] | None:
    """Return the axes that a node works along, counted from the front; None when they are unknown."""
    if len(node.arguments) <= position:
        return None
    value, rank = node.arguments[position], _rank(node)
    dims = [value] if isinstance(value, int) else value
    if rank is None or not isinstance(dims, list | tuple) or not all(isinstance(dim, int) for dim in dims):
        return None
    return tuple(sorted(dim % rank for dim in dims)) if rank else None


def _rank(node: GraphNode) -> int | None:
    """Return the rank of the node's first operand where the node's result determines it: norms, softmax, reductions
    with keepdim."""
    rank = len(node.types[0].shape) if node.types and node.types[0] is not None else None
    if rank is not None and is_a(node.op, "same_for_one") and not (len(node.arguments) > 2 and node.arguments[2]):
        dims = node.arguments[1] if len(node.arguments) > 1 else None
        rank += len(dims) if isinstance(dims, list | tuple) else isinstance(dims, int)
    return rank


def _size_along(node: GraphNode, view: GraphView) -> tuple[str, ...] | None:
    """Return the sizes of the axes that a reduction sums over."""
    source, dims = view.operand(node), _dims(node)
    if source is None or dims is None or not source.types or source.types[0] is None:
        return None
    shape = source.types[0].shape
    return tuple(shape[dim] for dim in dims if dim < len(shape))


def _duplicate(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    first = view.first[_content(node)]
    if first == node.name or is_a(node.op, "cheap", "random"):
        return ""
    if is_a(node.op, "mask") and node.source == view.nodes[first].source:
        return ""
    return f"{op} is computed twice from the same values"


def _dead(node: GraphNode, view: GraphView) -> str:
    if node.name in view.used or node.name in view.results:
        return ""
    return f"the result of {base_op(node.op)} is not used"


def _repeated(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if inner is None or base_op(inner.op) != op:
        return ""
    same = inner.arguments[1:] == node.arguments[1:] and inner.keywords == node.keywords
    if is_a(node.op, "idempotent") and same:
        return f"{op} of {op} is {op}"
    if is_a(node.op, "involution"):
        return f"{op} twice changes nothing"
    return ""


def _repeated_norm(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    if not is_a(node.op, "normalizes"):
        return ""
    inner = view.through(view.operand(node), "mul", "add")
    if inner is None or base_op(inner.op) != op or _normalized_axes(inner) != _normalized_axes(node):
        return ""
    return f"{op.removeprefix('_').removeprefix('native_')} of what is normalized along the same axes already"


def _normalized_axes(node: GraphNode) -> Any:
    return node.arguments[1] if base_op(node.op) in ("native_layer_norm", SOFTMAX) else None


def _sum_of_softmax(node: GraphNode, view: GraphView) -> str:
    if base_op(node.op) != "sum":
        return ""
    inner = view.operand(node)
    if inner is not None and base_op(inner.op) == "exp":
        inner = view.operand(inner)
        is_softmax = inner is not None and base_op(inner.op) == LOG_SOFTMAX
    else:
        is_softmax = inner is not None and base_op(inner.op) == SOFTMAX
    if inner is None or not is_softmax:
        return ""
    own, theirs = _dims(node), _dims(inner)
    return "the sum of a softmax along its own axis is 1" if own is not None and own == theirs else ""


def _inverse(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if inner is None or INVERSES.get(op) != base_op(inner.op):
        return ""
    return f"{op} of {base_op(inner.op)} changes nothing"


def _not_negative(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if op not in ("relu", "abs") or inner is None or base_op(inner.op) == op:
        return ""
    return f"{op} of {base_op(inner.op)}, which is never negative" if is_a(inner.op, "not_negative") else ""


def _neutral(node: GraphNode, _: GraphView) -> str:
    """Detect adding 0, multiplying by 1, and operations that cancel out."""
    op = base_op(node.op)
    if len(node.arguments) < 2:
        return ""
    left, right = node.arguments[0], node.arguments[1]
    if op in ("add", "sub") and _is_number(right, 0):
        return f"{op} of 0 changes nothing"
    if op in ("mul", "div", "pow") and _is_number(right, 1):
        return f"{op} by 1 changes nothing"
    if op == "mul" and _is_number(right, 0):
        return "the product with 0 is 0"
    same = referred(left) is not None and left == right
    if op == "sub" and same and not node.keywords:
        return "a value minus itself is 0"
    return "a value divided by itself is 1" if op == "div" and same else ""


def _is_number(value: Any, wanted: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == wanted


def _single_element_axis(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    if not is_a(node.op, "same_for_one") and op not in (SOFTMAX, LOG_SOFTMAX):
        return ""
    if op in (SOFTMAX, LOG_SOFTMAX):
        dims, type_ = _dims(node), node.types[0] if node.types else None
        sizes = tuple(type_.shape[dim] for dim in dims) if dims and type_ is not None else None
    else:
        sizes = _size_along(node, view)
    if not sizes or set(sizes) != {"1"}:
        return ""
    return f"{op.removeprefix('_')} along an axis of one element"


_RULES: tuple[Callable[[GraphNode, GraphView], str], ...] = (
    _dead,
    _duplicate,
    _sum_of_softmax,
    _repeated_norm,
    _repeated,
    _inverse,
    _not_negative,
    _neutral,
    _single_element_axis,
)
