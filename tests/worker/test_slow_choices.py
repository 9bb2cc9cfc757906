"""A choice of max-autotune that is far slower than any winner is not called again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel_lsp.worker.timing import baseline


@pytest.mark.parametrize(
    ("calls_ms", "options", "n_calls", "found"),
    [
        ([3.0], {}, 6, 1.5),
        ([900.0, 800.0, 850.0], {}, 3, 800.0),
        ([900.0, 3.0], {}, 7, 1.5),  # the first call loaded its code
        ([1500.0, 3.0], {}, 7, 1.5),  # or compiled it
        ([900.0, 700.0, 3.0], {}, 8, 1.5),  # the process was paused in the second one
        ([900.0, 800.0], {"return_mode": "all"}, 5, 1.5),
    ],
)
def test_a_slow_choice_is_measured_by_the_fastest_of_few_calls(
    calls_ms: list[float],
    options: dict[str, Any],
    n_calls: int,
    found: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, times = [], iter(calls_ms)

    class Benchmarker:
        def benchmark_gpu(self, _callable: Callable[[], Any], rep: int = 5, return_mode: str = "min") -> float:
            for _ in range(rep):
                _callable()
            return 1.5

    def device_ms(call: Callable[[], Any]) -> float:
        call()
        return next(times)

    monkeypatch.setattr(baseline, "_device_ms", device_ms)
    baseline.measure_slow_choices_once(Benchmarker)
    baseline.measure_slow_choices_once(Benchmarker)
    assert Benchmarker().benchmark_gpu(lambda: called.append(0), **options) == found
    assert len(called) == n_calls


@pytest.mark.parametrize(
    ("calls_ms", "n_calls", "found"),
    [
        # cuDNN's own, then Triton's for a depthwise convolution: 8 ms, and 3 ms with its code to load
        ([[0.05], [8.0, 7.0, 7.5], [30.0, 1.5], [0.06]], [6, 3, 7, 6], [0.05, 7.0, 0.05, 0.05]),
        # others take 4 s a call, which is not made for the third and fourth
        ([[2.0], [4200.0, 4100.0], [4000.0, 4000.0], [], []], [6, 2, 2, 0, 0], [0.05, 4100.0, 4000.0, 4000.0, 4000.0]),
        # each compiles in its first call, and no later one is left out
        ([[0.5], [1500.0, 0.4], [1500.0, 0.35], [1500.0, 0.3]], [6, 7, 7, 7], [0.05] * 4),
        # all choices are slow: each is measured by two calls
        ([[4200.0, 4000.0], [4100.0, 3900.0], [4300.0, 4200.0]], [2, 2, 2], [4000.0, 3900.0, 4200.0]),
        # a launch takes longer than the kernel
        ([[0.01], [0.3]], [6, 6], [0.05, 0.05]),
    ],
    ids=["far slower", "hopeless", "compiled at the first call", "all slow", "launches"],
)
def test_choices_are_measured_as_long_as_they_may_win(
    calls_ms: list[list[float]], n_calls: list[int], found: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    times = iter([ms for choice in calls_ms for ms in choice])

    class Benchmarker:
        def benchmark_gpu(self, _callable: Callable[[], Any]) -> float:
            for _ in range(5):
                _callable()
            return 0.05

    class Selector:
        @classmethod
        def benchmark_choices(cls, numbers: list[int]) -> list[float]:
            return [Benchmarker().benchmark_gpu(lambda n=number: called.append(n)) for number in numbers]

    def device_ms(call: Callable[[], Any]) -> float:
        call()
        return next(times)

    monkeypatch.setattr(baseline, "_device_ms", device_ms)
    baseline.measure_slow_choices_once(Benchmarker, Selector)
    assert Selector.benchmark_choices(list(range(len(calls_ms)))) == found
    assert [called.count(number) for number in range(len(calls_ms))] == n_calls
    times = iter([50.0])  # the next operation is compared with none of these
    assert Selector.benchmark_choices([0]) == [0.05]


def test_the_classes_of_this_torch_have_what_is_replaced() -> None:
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    selection = pytest.importorskip("torch._inductor.select_algorithm")
    assert callable(type(benchmarking.benchmarker).benchmark_gpu)
    assert callable(selection.AlgorithmSelectorCache.benchmark_choices.__func__)
