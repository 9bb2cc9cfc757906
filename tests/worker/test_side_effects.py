"""Refuse code whose calls change more than their results: kernels would leave it as it is."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import TargetError
from tests.worker.capturing import capture_text, tensor

NET = """
TOTAL, TABLE = 0, {}


class Counter:
    n = 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.kept, self.stats, self.seen, self.memo, self.counter = 0, None, {"n": 0}, [], {}, Counter()

    def forward(self, x):
        BODY
        return x * 2


def f(x):
    global TOTAL
    TOTAL += 1
    return x * 2
"""


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("self.n += 1", "self.n"),
        ("self.n = x.shape[0]", "self.n"),
        ("self.stats['n'] += 1", "self.stats"),
        ("self.seen.append(x.shape)", "self.seen"),
        ("self.seen.append(x.detach())", "self.seen"),
        ("self.counter.n += 1", "self.counter"),
        ("self.n, self.kept = self.n + 1, x", "self.n, self.kept"),
    ],
)
def test_a_method_that_changes_its_module_is_refused(body: str, changed: str) -> None:
    check_refused(NET.replace("BODY", body), "Net", changed)


@pytest.mark.parametrize(
    "body", ["self.kept = x * 3", "self.kept = x", "self.kept = x if self.kept is None else self.kept + x"]
)
def test_a_tensor_of_the_inputs_that_a_module_keeps_is_a_result(body: str) -> None:
    task = capture_text(NET.replace("BODY", body), "Net", inputs=[tensor("x", 4, 8)])
    assert task.state_updates == {"kept": "assigned"}
    assert [output.name for output in task.forward.outputs] == ["out", "new_kept"]
    assert ("kept" in task.module_settings) == ("is None" in body)


def test_a_module_that_keeps_more_tensors_than_an_operator_returns_is_refused() -> None:
    body = "for n in range(65): setattr(self, f'kept{n}', x * n)"
    with pytest.raises(TargetError, match="each call updates more than 64 tensors of the module, kept0 among them"):
        capture_text(NET.replace("BODY", body), "Net", inputs=[tensor("x", 4, 8)])


def test_a_function_that_counts_its_calls_is_refused() -> None:
    check_refused(NET.replace("BODY", "pass"), "f", "the global TOTAL")


@pytest.mark.parametrize(
    "body",
    [
        "self.memo[3] = torch.ones(3)",
        "self.kept = torch.ones(8) if self.kept is None else self.kept\n        x = x + self.kept",
        "TABLE['n'] = torch.ones(3)",
    ],
    ids=["dict of tensors", "tensor that is read again", "table of a file"],
)
def test_a_cache_of_tensors_is_none(body: str) -> None:
    assert capture_text(NET.replace("BODY", body), "Net", inputs=[tensor("x", 4, 8)]).name == "net"


def test_a_property_that_is_computed_once_is_no_change_of_each_call() -> None:
    text = (
        NET.replace("BODY", "x = x * self.factor")
        + """

import functools

Net.factor = functools.cached_property(lambda self: len(self.stats) * 0.5)
Net.factor.__set_name__(Net, "factor")
"""
    )
    assert capture_text(text, "Net", inputs=[tensor("x", 4, 8)]).name == "net"
    check_refused(text.replace("x = x * self.factor", "self.factor_of_call = 0.5"), "Net", "self.factor_of_call")


def test_a_counter_of_training_alone_makes_modes_differ() -> None:
    """The graphs are the same, and the operator of one would serve both."""
    text = NET.replace("BODY", "self.n += self.training")
    assert capture_text(text, "Net", inputs=[tensor("x", 4, 8)]).module_settings["training"] is False


def check_refused(text: str, symbol: str, changed: str) -> None:
    with pytest.raises(TargetError, match=rf"each call changes {changed}, which kernels would leave as it is"):
        capture_text(text, symbol, inputs=[tensor("x", 4, 8)])
