"""Filter tasks by the criteria of robust-kbench [arXiv 2509.14279] and of CUDA Agent's data synthesis [2602.24286].

The worker measures (`worker/tasks.py`); the thresholds are here. A flagged task can be beaten by a kernel that
does less than it should: a constant, a copy, a formula without the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings
from kernel_lsp.core.benchmark import FilterResult, TaskFilters
from kernel_lsp.core.task import TargetSource
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.tasks.redundancy import redundancies

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
    """Apply the filters that need only the facts of one configuration (`worker.tasks.examine_task`)."""
    rules = (_not_finite, _range, _seeds, _axes, _weights, _inputs, _determinism, _backward, _compile, _eager_time)
    return tuple(result.model_copy(update={"configuration": configuration}) for rule in rules for result in rule(facts))


# --- below: one filter each


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
