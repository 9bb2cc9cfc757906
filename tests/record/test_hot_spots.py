"""The ranking of recorded targets by share times headroom."""

from __future__ import annotations

import pytest

from kernel_lsp.core.recording import Speedup, rank_hot_spots
from tests.record.programs import recording_of

SEEN = {"inputs": ("x=f32[4]",)}


def check(speedups: dict[str, Speedup], *expected: tuple[str, float]) -> None:
    recording = recording_of(m__a={**SEEN, "share": 0.5}, m__b={**SEEN, "share": 0.3})
    spots = rank_hot_spots(recording, speedups)
    assert [(spot.target, spot.gain) for spot in spots] == [(name, pytest.approx(gain)) for name, gain in expected]


def test_without_a_speedup_the_share_is_the_most_that_can_be_saved() -> None:
    check({}, ("m.py::a", 0.5), ("m.py::b", 0.3))


def test_a_small_speedup_of_a_large_share_comes_after_a_large_one_of_a_small_share() -> None:
    twice, tenth = Speedup(ratio=10.0, kind="measured"), Speedup(ratio=1.25, kind="estimated")
    check({"m.py::a": tenth, "m.py::b": twice}, ("m.py::b", 0.27), ("m.py::a", 0.1))


def test_a_slower_kernel_saves_nothing() -> None:
    check({"m.py::a": Speedup(ratio=0.5, kind="measured")}, ("m.py::b", 0.3), ("m.py::a", 0.0))
