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
        ([900.0, 800.0], {}, 2, 800.0),
        ([900.0, 3.0], {}, 7, 1.5),  # the first call loaded its code
        ([900.0, 800.0], {"return_mode": "all"}, 5, 1.5),
    ],
)
def test_a_slow_choice_is_measured_by_its_second_call(
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


def test_the_class_of_this_torch_has_what_is_replaced() -> None:
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    assert callable(type(benchmarking.benchmarker).benchmark_gpu)
