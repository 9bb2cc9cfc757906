"""Timed calls have to do the work that was judged: what is found when they do not. The runs are on the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from kernel_lsp.worker.timing import candidate as timing_candidate
from kernel_lsp.worker.timing.rounds import _block
from kernel_lsp.worker.timing.subject import Subject

N = 64


class FakeRun:
    """Doubles x; `kernel` may do something else instead."""

    def __init__(self, kernel: Callable[[FakeRun], None] | None = None) -> None:
        self._fingerprints, self._kernel = timing_candidate.fingerprints, kernel
        x = torch.arange(N, dtype=torch.float32) + 1
        self.tensors = {"x": x, "out": torch.empty(N)}
        self.poison()

    def __call__(self) -> None:
        if self._kernel is not None:
            self._kernel(self)
        else:
            torch.mul(self.tensors["x"], 2, out=self.tensors["out"])

    def fresh(self) -> FakeRun:
        return FakeRun(self._kernel)

    def poison(self) -> None:
        self.tensors["out"].view(torch.uint8).fill_(0xFF)

    @property
    def has_own_results(self) -> bool:
        return True

    def output_tensors(self) -> dict[str, torch.Tensor]:
        return {"out": self.tensors["out"]}

    def output_fingerprints(self) -> dict[str, int]:
        return self._fingerprints({"out": self.tensors["out"]})

    def changed_inputs(self, expected: dict[str, int]) -> list[str]:
        found = self._fingerprints({name: self.tensors[name] for name in expected})
        return [name for name in expected if found[name] != expected[name]]

    def overrun(self) -> list[str]:
        return []


def watched(timed: Callable[[FakeRun], None] | None, n_blocks: int = 8, n_runs: int = 4) -> dict[str, Any]:
    """Warm up with the right kernel, then time blocks with `timed`."""
    runs = [FakeRun() for _ in range(n_runs)]
    inputs = timing_candidate.fingerprints({"x": runs[0].tensors["x"]})
    watch = timing_candidate.OutputWatch(runs, inputs, {})
    for run in runs:
        run()
    for run in runs:
        run._kernel = timed
    for _ in range(n_blocks):
        watch.before_block([(place, {}) for place in range(n_runs)])
        for run in runs:
            run()
        watch.after_block()
    report: dict[str, Any] = watch.report()
    return report


def test_the_same_work_again_is_all_right() -> None:
    found = watched(None)
    assert (found["n_checked"], found["n_unequal"], found["relative_difference"]) == (8, 0, 0.0)
    assert found["changed_inputs"] == found["overrun"] == []


def test_a_kernel_that_stops_working_is_found() -> None:
    assert watched(lambda run: None)["relative_difference"] == math.inf


def test_a_single_set_of_large_buffers_is_watched_too() -> None:
    def varies(run: FakeRun) -> None:
        torch.mul(run.tensors["x"], 2 + 1e-6 * next(numbers), out=run.tensors["out"])

    numbers = itertools.count(1)
    assert watched(None, n_runs=1)["n_unequal"] == 0
    assert watched(lambda run: None, n_runs=1)["relative_difference"] == math.inf
    found = watched(varies, n_runs=1)
    assert found["n_unequal"] == 8
    assert 0.0 < found["relative_difference"] < 1e-5


def test_a_kernel_that_never_worked_is_found_too() -> None:
    """Its first outputs are poison as well: they are no standard to compare with."""
    runs = [FakeRun(lambda run: None) for _ in range(2)]
    watch = timing_candidate.OutputWatch(runs, timing_candidate.fingerprints({"x": runs[0].tensors["x"]}), {})
    watch.before_block([(0, {}), (1, {})])
    watch.after_block()
    assert watch.report()["relative_difference"] == math.inf


def test_half_of_the_work_is_found() -> None:
    def half(run: FakeRun) -> None:
        torch.mul(run.tensors["x"][: N // 2], 2, out=run.tensors["out"][: N // 2])

    assert watched(half)["n_unequal"] == 8


def test_another_order_of_additions_is_a_small_difference() -> None:
    def wobbling(run: FakeRun) -> None:
        run.tensors["out"].copy_(run.tensors["x"] * (2 + 1e-6 * float(torch.rand(()))))

    found = watched(wobbling)
    assert found["n_unequal"] > 0
    assert found["relative_difference"] < 1e-5


def test_inputs_that_change_are_found() -> None:
    def spoiling(run: FakeRun) -> None:
        torch.mul(run.tensors["x"], 2, out=run.tensors["out"])
        run.tensors["x"].zero_()

    assert watched(spoiling)["changed_inputs"] == ["x"]


def test_the_fingerprint_that_was_judged_is_the_standard() -> None:
    runs = [FakeRun() for _ in range(2)]
    watch = timing_candidate.OutputWatch(runs, {}, {"out": 12345})
    for run in runs:
        run()
    watch.before_block([(0, {})])
    runs[0]()
    watch.after_block()
    assert watch.report()["n_unequal"] == 1


def test_a_second_watch_of_the_same_runs_counts_on_its_own() -> None:
    runs = [FakeRun()]
    first = timing_candidate.OutputWatch(runs, timing_candidate.fingerprints({"x": runs[0].tensors["x"]}), {})
    runs[0]()
    second = first.again()
    second.before_block([(0, {})])
    runs[0]()
    second.after_block()
    assert (first.report()["n_checked"], second.report()["n_checked"]) == (0, 1)
    assert second.report()["relative_difference"] == 0.0
    second.before_block([(0, {})])
    second.after_block()
    assert second.report()["relative_difference"] == math.inf


def test_other_values_in_timed_calls_alone_are_found() -> None:
    """All timed calls agree with each other: only a call that nobody times shows the difference."""
    runs = [FakeRun() for _ in range(4)]
    for run in runs:
        run()
    watch = timing_candidate.OutputWatch(runs, {}, runs[0].output_fingerprints())
    for run in runs:
        run()
    watch.before_block([(place, {}) for place in range(4)])
    for run in runs:
        torch.mul(run.tensors["x"], 2.5, out=run.tensors["out"])
    watch.after_block()
    assert watch.report()["relative_difference"] == pytest.approx(0.25)


class LibraryRun(FakeRun):
    """Doubles x as a library step does, into a tensor that it allocates."""

    has_own_results = False

    def __call__(self) -> None:
        self.tensors["out"] = self.tensors["x"] * 2


class PooledGraph:
    """Calls that a graph captured, whose temporaries are the results of every graph captured after it: the worst that
    one pool of memory allows. Its calls multiply by `factor`."""

    def __init__(self, runs: list[LibraryRun], places: list[int], watch: Any, factor: float) -> None:
        self.places, self._factor = tuple(places), factor
        self.later: list[PooledGraph] = []
        for place in places:
            runs[place]()
        self.made = [(runs[place].tensors["x"], runs[place].tensors["out"]) for place in places]
        self.results = watch.captured(places)

    def __call__(self) -> None:
        for _, out in (pair for graph in self.later for pair in graph.made):
            out.fill_(7.0)
        for x, out in self.made:
            torch.mul(x, self._factor, out=out)


def timed_in_graphs(n_calls: int, factor: float, n_blocks: int = 40) -> dict[str, Any]:
    """Time blocks of three samples of graphs that share a pool, over four sets of buffers."""
    runs = [LibraryRun() for _ in range(4)]
    watch = timing_candidate.OutputWatch(cast(Any, runs), {}, {})
    subject = Subject(lambda place: runs[place], lambda place: runs[place], 4, None, watch=watch, n_calls=n_calls)
    graphs = [PooledGraph(runs, list(subject.around(start)), watch, factor) for start in range(4)]
    for index, graph in enumerate(graphs):
        graph.later = graphs[index + 1 :]
    subject.graphs = cast(Any, graphs)
    for _ in range(n_blocks):
        _block(subject, {"n_samples": 2, "n_warm_samples": 0, "n_operator_calls": 0})
    report: dict[str, Any] = watch.report()
    return report


@pytest.mark.parametrize("n_calls", [1, 2, 4])
def test_results_in_the_pool_of_graphs_are_compared_while_they_are_intact(n_calls: int) -> None:
    """The gradients of a library's attention lie where another graph has its temporaries."""
    found = timed_in_graphs(n_calls, 2.0)
    assert (found["n_checked"], found["n_unequal"]) == (40, 0)


@pytest.mark.parametrize("n_calls", [1, 2, 4])
def test_wrong_results_in_the_pool_of_graphs_are_found(n_calls: int) -> None:
    found = timed_in_graphs(n_calls, 2.2)
    assert found["n_unequal"] == 40
    assert found["relative_difference"] == pytest.approx(0.1, rel=1e-3)
