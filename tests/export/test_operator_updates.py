"""Operators update the state of their module as its own code does: running statistics, hidden states, what it shows."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.generate.harness import plan_text
from tests.worker.capturing import PRELUDE
from tests.worker.capturing import tensor as sized

from .loading import load_operator

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        INIT

    def forward(self, x):
        BODY
"""
STATES = {
    "norm": ("self.norm = nn.BatchNorm1d(3)", "return self.norm(self.layer(x)).relu()"),
    "mean": (
        'self.register_buffer("mean", torch.zeros(4))',
        "self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1))); return self.layer(x) - self.mean",
    ),
    "hidden": (
        "self.hidden = torch.zeros(5, 3, 4)",
        "self.hidden = self.layer(x).tanh() + self.hidden.detach(); return self.hidden * 2",
    ),
    "shown": ("self.weights = None", "self.weights = self.layer(x).softmax(-1); return self.weights * x, x.sum()"),
    "count": ('self.register_buffer("calls", torch.tensor(0))', "self.calls += 2; return self.layer(x).relu()"),
    "cache": (
        "self.table = None",
        "if self.table is None: self.table = torch.ones(4)\n        return self.layer(x) * self.table",
    ),
    "reset": ("self.gain = torch.ones(4)", "y = self.layer(x) * self.gain; self.gain = torch.zeros(4); return y"),
    "empty": (
        'self.register_buffer("table", None)',
        "self.table = torch.ones(4) if self.table is None else self.table; return self.layer(x) * self.table",
    ),
    "twice": ("self.norm = nn.BatchNorm1d(3)", "return self.norm(self.norm(self.layer(x)).relu())"),
    "scale": (
        'self.register_buffer("scale", torch.tensor(1.0))',
        "self.scale.mul_(0.9); return self.layer(x) * self.scale",
    ),
    "queue": (
        'self.register_buffer("queue", torch.zeros(8, 4))',
        "self.queue = torch.cat([x.detach().mean(1), self.queue[:3]]); return self.layer(x) + self.queue.sum(0)",
    ),
    "detached": ("self.kept = None", "y = self.layer(x); self.kept = y.detach(); return y"),
    "teacher": (
        "self.teacher = nn.Parameter(torch.zeros(4), requires_grad=False)",
        "self.teacher.mul_(0.9).add_(x.detach().mean((0, 1))); return self.layer(x) - self.teacher",
    ),
    "rounded": (
        'self.register_buffer("kept_half", torch.zeros(5, 3, 4, dtype=torch.bfloat16))',
        "self.kept_half.copy_(x.detach()); return self.layer(x) - self.kept_half",
    ),
}
"""Lines of `__init__` and of `forward` by what they keep."""
THROUGH = (
    "self.hidden = torch.zeros(5, 3, 4)",
    "self.hidden = self.layer(x).tanh() + self.hidden; return self.hidden * 2",
)
OF_INPUTS = (
    "self.moving = torch.zeros(4)",
    "self.moving = self.moving * 0.5 + x.mean((0, 1)); return self.layer(x) - self.moving",
)
pytestmark = pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*")


def modules(
    directory: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, str], *, backward: bool
) -> tuple[Any, Any, Callable[[], int]]:
    """Return a module, an equal one that uses its operator, and a function that counts the calls of kernels: this CPU
    counts as a device that has some, and PyTorch computes there."""
    text = NET.replace("INIT", parts[0]).replace("BODY", parts[1])
    program = plan_text(text, inputs=[sized("x", 5, 3, 4)], symbol="Net", backward=backward)
    operator: Any = load_operator(program.task, program.render({}), directory)
    monkeypatch.setattr(operator._runtime, "_not_on_one_gpu", lambda *_: "")
    monkeypatch.setattr(operator._runtime._CALLS[operator.OPERATOR.key], "fallback", {})
    file = types.ModuleType("file_of_net")
    exec(PRELUDE + text, file.__dict__)
    plain = file.Net().train(backward)
    used = operator.use_net(copy.deepcopy(plain))
    return plain, used, lambda: operator.calls()["fallback"].get("this device has no kernels", 0)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("backward", [True, False], ids=["training", "eval"])
def test_state_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, backward: bool) -> None:
    plain, used, n_by_kernels = modules(tmp_path, monkeypatch, STATES[name], backward=backward)
    held = dict(used.named_buffers())
    for step in range(3):
        found = []
        for module in (plain, used):
            x = torch.linspace(-1, 1 + step, 60).view(5, 3, 4).requires_grad_(backward)
            with torch.set_grad_enabled(backward):
                results = module(x)
            if backward:
                total = sum(each.sin().sum() for each in (results if isinstance(results, tuple) else (results,)))
                total.backward()
            found.append((results, x.grad, module.layer.weight.grad, dict(module.named_buffers()), vars(module)))
        (*ours, our_buffers, our_attributes), (*theirs, their_buffers, their_attributes) = found
        torch.testing.assert_close(ours, theirs)
        our_buffers.pop("table", None)  # a cache, which the operator does not need
        torch.testing.assert_close(our_buffers, their_buffers)
        torch.testing.assert_close(dict(used.named_parameters()), dict(plain.named_parameters()))
        torch.testing.assert_close(our_attributes.get("weights"), their_attributes.get("weights"))
        kept = [getattr(module, "kept", None) for module in (plain, used)]
        torch.testing.assert_close(*kept)
        assert name != "detached" or not kept[1].requires_grad
        if name not in ("hidden", "queue", "reset"):  # which the code assigns
            assert all(used.get_buffer(path) is value for path, value in held.items()), "changed in place"
    assert n_by_kernels() == 3 + 3 * backward


def test_gradients_flow_through_a_state_that_has_its_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, used, n_by_kernels = modules(tmp_path, monkeypatch, THROUGH, backward=True)
    found = []
    for module in (plain, used):
        x = torch.linspace(-1, 1, 60).view(5, 3, 4).requires_grad_()
        sum(module(x * step).sin().sum() for step in range(1, 4)).backward()
        found.append((x.grad, module.layer.weight.grad))
    torch.testing.assert_close(*found)
    assert n_by_kernels() == 6


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "without"])
def test_a_state_of_inputs_without_gradients_has_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backward: bool
) -> None:
    plain, used, _ = modules(tmp_path, monkeypatch, OF_INPUTS, backward=backward)
    x = torch.linspace(-1, 1, 60).view(5, 3, 4)
    for _ in range(3):
        for module in (plain, used):
            module(x).sin().sum().backward()
        assert not used.moving.requires_grad
        torch.testing.assert_close(used.moving, plain.moving)
        torch.testing.assert_close(used.layer.weight.grad, plain.layer.weight.grad)


@pytest.mark.parametrize("name", ["norm", "mean", "shown", "count", "queue"])
def test_compiled_code_updates_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain, used, _ = modules(tmp_path, monkeypatch, STATES[name], backward=False)
    x = torch.linspace(-1, 1, 60).view(5, 3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(used, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), plain(x))
    torch.testing.assert_close(dict(used.named_buffers()), dict(plain.named_buffers()))
    torch.testing.assert_close(getattr(used, "weights", None), getattr(plain, "weights", None))
