"""Operators return what the code returns: its containers and classes, its gradients, and what PyTorch's transforms of a
program make of it."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap

from kernel_lsp.worker.shipped.operator_support import arrangement
from tests.generate.harness import plan_text
from tests.worker.capturing import PRELUDE
from tests.worker.capturing import tensor as sized

from .loading import load_operator

X = torch.linspace(-1, 1, 32).view(4, 8)
CLASSES = """
import collections, dataclasses, numpy


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    loss: torch.Tensor = None


Pair = collections.namedtuple("Pair", "first second")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.gain, self.table = nn.Parameter(torch.ones(8)), numpy.float32(2), numpy.array([1.0, 2.0])

    def forward(self, x):
        y = x.tanh() * self.w
        BODY
"""
pytestmark = pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*", "ignore:.*torch.jit.*deprecated")


def pair(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> tuple[Any, Any, Callable[[], int]]:
    """Return a module, one that uses its operator, and a function that counts the calls of kernels: this CPU counts as
    a device that has some, and PyTorch computes there."""
    text = CLASSES.replace("BODY", body)
    program = plan_text(text, inputs=[sized("x", 4, 8)], symbol="Net")
    operator: Any = load_operator(program.task, program.render({}), directory)
    monkeypatch.setattr(operator._runtime, "_not_on_one_gpu", lambda *_: "")
    monkeypatch.setattr(operator._runtime._CALLS[operator.OPERATOR.key], "fallback", {})
    file = types.ModuleType("file_of_net")
    exec(PRELUDE + text, file.__dict__)
    plain, used = file.Net(), operator.use_net(file.Net())
    return plain, used, lambda: operator.calls()["fallback"].get("this device has no kernels", 0)


@pytest.mark.parametrize(
    "body",
    [
        "return y, None",
        "return (y,)",
        "return [y, y * 2]",
        'return {"a": y, "b": [y * 2, {"c": (y.exp(), 3, "text")}]}',
        "return Out(logits=y)",
        "return Pair(y, Out(y * 2, y.mean()))",
        "return collections.OrderedDict(a=y, b=y * 2)",
        "return y.max(-1)",
    ],
)
def test_results_are_in_the_codes_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    plain, used, n_by_kernels = pair(tmp_path, monkeypatch, body)
    assert_same(used(X), plain(X))
    assert n_by_kernels() == 1


def test_compiled_code_arranges_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, used, n_by_kernels = pair(tmp_path, monkeypatch, 'return {"a": y, "b": Out(y * 2)}')
    assert_same(torch.compile(used, fullgraph=True, backend="aot_eager")(X), plain(X))
    assert n_by_kernels() == 1


def test_a_class_that_is_not_found_leaves_the_call_to_pytorch() -> None:
    def returns(out: Any, *, Missing: Any = "no.such.module") -> Any:
        return Missing(out)

    assert arrangement(returns, pair)[1] == "the class Missing, which the code returns, is not found in no.such.module"


def test_a_part_without_gradients_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's gradients are those of the graph, which is not told about ``no_grad``."""
    body = "with torch.no_grad():\n            y = y.abs()\n        return x / y"
    plain, used, n_by_kernels = pair(tmp_path, monkeypatch, body)
    for module in (plain, used):
        module(X).sum().backward() if module(X).requires_grad else None
    assert plain.w.grad is None
    assert used.w.grad is None
    with torch.no_grad():
        assert_same(used(X), plain(X))
    assert n_by_kernels() == 1


def test_numbers_of_numpy_are_arguments_and_arrays_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, used, n_by_kernels = pair(tmp_path, monkeypatch, "return y * self.gain * float(self.table[1])")
    assert_same(used(X), plain(X))
    assert n_by_kernels() == 1
    for module in (plain, used):
        module.table[1] = 3.0
    assert_same(used(X), plain(X))
    assert n_by_kernels() == 1


def tangent(module: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(X, torch.ones_like(X)))).tangent


def of_each_row(module: Any) -> Any:
    def loss(weights: Any, row: torch.Tensor) -> Any:
        return functional_call(module, weights, (row[None],)).sum()

    return vmap(grad(loss), (None, 0))(dict(module.named_parameters()), X)


def exported(module: Any) -> Any:
    sizes = {"x": {0: torch.export.Dim("rows", min=2)}}
    return torch.export.export(module, (X,), dynamic_shapes=sizes).module()(torch.ones(6, 8))


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit.trace": lambda module: torch.jit.trace(module, X, check_trace=False)(torch.ones(6, 8)),
    "export": exported,
    "vmap": lambda module: vmap(module)(torch.ones(3, 4, 8)),
    "grad": lambda module: grad(lambda x: module(x).sum())(X),
    "gradients of each row": of_each_row,
    "hessian": lambda module: hessian(lambda x: module(x).pow(3).sum())(X[:1]),
    "jvp": lambda module: jvp(module, (X,), (torch.ones_like(X),)),
    "forward mode": tangent,
    "sparse": lambda module: module(X.to_sparse()),
}


def test_transforms_and_traces_see_pytorchs_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, used, n_by_kernels = pair(tmp_path, monkeypatch, "return y.abs() + x")
    for name, transform in TRANSFORMS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error", torch.jit.TracerWarning)
            assert_same(transform(used), transform(plain)), name
    assert n_by_kernels() == 0
    assert_same(used(X), plain(X))
    assert n_by_kernels() == 1


def assert_same(found: Any, expected: Any) -> None:
    """Types, texts and tensors are the same, in classes of the program too."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected))
    else:
        assert found == expected
