"""Sizes that may change: the smallest is found in few trials, and a deep module has few symbols."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.worker.capture import validation
from tests.worker.capturing import capture_text, tensor


@pytest.mark.parametrize("proven", [0, 1, 2, 3, 33, 100])
@pytest.mark.parametrize("true", [1, 2, 5, 17, 32])
def test_few_trials_find_the_smallest_size_that_agrees(monkeypatch: pytest.MonkeyPatch, proven: int, true: int) -> None:
    trials: list[int] = []

    def agrees(captured: Any, wanted: dict[str, int], reference: Any) -> bool:
        trials.append(wanted["s"])
        return wanted["s"] >= true

    monkeypatch.setattr(validation, "agrees_at", agrees)
    captured: Any = SimpleNamespace(bounds={"s": SimpleNamespace(minimum=proven)})
    found = validation.smallest_size_that_agrees(captured, "s")  # type: ignore[arg-type]
    assert found == max(1, min(proven, true))
    assert len(trials) <= 2 * max(proven, 1).bit_length() + 6


DEEP = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.ReLU() if n % 2 else nn.Tanh() for n in range({n_layers})))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.mark.parametrize(("n_layers", "n_symbols"), [(4, 2), (40, 1)])
def test_of_a_deep_module_only_the_first_dim_may_change(n_layers: int, n_symbols: int) -> None:
    task = capture_text(DEEP.format(n_layers=n_layers), "Deep", inputs=[tensor("x", 8, 16)])
    assert len(task.symbols) == n_symbols
    assert task.symbols[0].captured == 8
    assert any("deep" in note for note in task.notes) == (n_symbols == 1)


ASKING = """
class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Tanh() for n in range({n_layers})))

    def forward(self, x):
        return self.layers(x) if self.training else self.layers(x) * 1.0
"""


@pytest.mark.parametrize(("n_layers", "words"), [(4, "computes something else"), (40, "was not compared")])
def test_a_deep_module_that_asks_for_its_mode_is_captured_for_that_mode(n_layers: int, words: str) -> None:
    task = capture_text(ASKING.format(n_layers=n_layers), "Asking", inputs=[tensor("x", 8, 16)])
    assert task.module_settings["training"] is False
    assert any(words in note for note in task.notes)


@pytest.mark.parametrize(("n_others", "tried"), [(4, 6), (1 << 17, 2)])
def test_large_inputs_of_fixed_sizes_are_tried_with_few_of_them(
    monkeypatch: pytest.MonkeyPatch, n_others: int, tried: int
) -> None:
    monkeypatch.setattr(validation, "input_shapes", lambda captured, sizes: [(sizes["s"], n_others)])
    captured: Any = SimpleNamespace(captured_sizes={"s": 8}, bounds={"s": SimpleNamespace(minimum=1)})
    assert validation._sizes(captured, {}, small=True) == {"s": tried}
    assert validation._sizes(captured, {}, small=False) == {"s": 8}


@pytest.mark.parametrize(("n_steps", "symbolic"), [(60, ["B"]), (100, [])])
def test_a_long_unrolled_loop_has_few_symbols(n_steps: int, symbolic: list[str]) -> None:
    """Three calls per step: more than 128 leave the first symbolic dim of each input, more than 256 none."""
    text = """
        def f(x):
            T, B, D = x.shape
            h = x[0]
            for t in range(1, T):
                h = (h + x[t]).relu()
            return h
    """
    task = capture_text(text, "f", inputs=[tensor("x", n_steps, 3, 5)])
    assert [symbol.name for symbol in task.symbols] == symbolic
    assert any("calls" in note for note in task.notes)


def test_a_size_that_a_step_needs_is_fixed() -> None:
    text = "def f(x):\n    y = x @ x.t()\n    y.view(-1)[:: x.shape[0] + 1].fill_(-1)\n    return y.amax(1)"
    task = capture_text(text, "f", inputs=[tensor("x", 16, 64)])
    assert [symbol.captured for symbol in task.symbols] == [64]
    assert any("a kernel needs it as a constant" in note for note in task.notes)
