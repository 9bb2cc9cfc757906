"""Operators of code that takes literals, tuples and lists of tensors, and tensors that no kernel reads."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp.core.task import ConstantInput, TargetInput
from tests.generate.harness import plan_text
from tests.worker.capturing import PRELUDE
from tests.worker.capturing import scalar as number
from tests.worker.capturing import tensor as sized

from .loading import load_operator

ROTARY = ConstantInput(
    name="rotary", literal="(rotary_0, rotary_1)", tensors=(sized("rotary_0", 3, 4), sized("rotary_1", 3, 4))
)
ATTENTION = """
class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, rotary, window, cache, mask=None, **more):
        cos, sin = rotary
        y = self.layer(x) * cos + x * sin
        return y * window[0] if cache is None else y + cache
"""
MIXED = """
def mixed(x, unused, parts, mode="sum", scale=2.0):
    left, (right, factor) = parts
    total = (left + right * factor).sum(0) if mode == "sum" else (left - right).sum(0)
    return x.to(unused.dtype) * scale + total
"""
PARTS = ConstantInput(
    name="parts", literal="[parts_0, (parts_1_0, 3)]", tensors=(sized("parts_0", 6, 4), sized("parts_1_0", 6, 4))
)
pytestmark = pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*")


def loaded(
    directory: Path, monkeypatch: pytest.MonkeyPatch, text: str, symbol: str, inputs: Sequence[TargetInput]
) -> tuple[Any, Any, Callable[[], dict[str, int]]]:
    """Return the operator, the code's file, and a function that counts fallbacks by reason: this CPU counts as a device
    whose kernels PyTorch computes."""
    program = plan_text(text, inputs=list(inputs), symbol=symbol)
    operator: Any = load_operator(program.task, program.render({}), directory)
    monkeypatch.setattr(operator._runtime, "_not_on_one_gpu", lambda *_: "")
    monkeypatch.setattr(operator._runtime._CALLS[operator.OPERATOR.key], "fallback", {})
    file = types.ModuleType("file_of_code")
    exec(PRELUDE + text, file.__dict__)
    return operator, file, lambda: dict(operator.calls()["fallback"])


BY_KERNELS = "this device has no kernels"


def test_a_module_takes_a_tuple_of_tensors_and_literals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, cache = (ConstantInput(name="window", literal="(5, 0)"), ConstantInput(name="cache", literal="None"))
    inputs = [sized("x", 2, 3, 4), ROTARY, window, cache, sized("ids", 1, 3, dtype="i64"), number("flag", False)]
    operator, file, reasons = loaded(tmp_path, monkeypatch, ATTENTION, "Turned", inputs)
    module = file.Turned()
    x, cos, sin = torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3, 4)
    more = {"ids": torch.arange(3)[None], "flag": False}
    wanted = module(x, (cos, sin), (5, 0), None), module(x, (cos, sin), (7, 0), None), module(x, (cos, sin), (5, 0), x)
    used = operator.use_turned(module)
    assert torch.allclose(used(x, (cos, sin), (5, 0), None, **more), wanted[0])
    assert torch.allclose(used(x, rotary=(cos, sin), cache=None, window=(5, 0), **more), wanted[0])
    assert reasons() == {BY_KERNELS: 2}
    assert torch.allclose(torch.compile(used, backend="eager")(x, (cos, sin), (5, 0), None, **more), wanted[0])
    assert torch.allclose(used(x, (cos, sin), (7, 0), None, **more), wanted[1])
    assert torch.allclose(used(x, [cos, sin], [5, 0], None, **more), wanted[0])
    assert torch.allclose(used(x, (cos, sin), (5, 0), x, **more), wanted[2])
    assert torch.allclose(used(x, (cos, sin), (5, 0), None, x, **more), wanted[0])
    with pytest.raises(ValueError, match="unpack"):
        used(x, (cos,), (5, 0), None, **more)
    others = {reason: n for reason, n in reasons().items() if reason != BY_KERNELS}
    assert others == {
        "window is not (5, 0), as in the captured call": 1,
        "rotary is not (rotary_0, rotary_1), as in the captured call": 1,
        "cache is not None, as in the captured call": 1,
        "mask is not None, as in the captured call": 1,
    }


def test_a_function_has_a_tensor_that_no_kernel_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as another call than the captured one: the operator was never used, without an error."""
    unused = sized("unused", 2, 4, dtype="bf16")
    inputs = [sized("x", 5, 4), unused, PARTS, ConstantInput(name="mode", literal="'sum'"), number("scale", 2.0)]
    operator, file, reasons = loaded(tmp_path, monkeypatch, MIXED, "mixed", inputs)
    used = operator.use_mixed(file.mixed)
    x, other, left, right = torch.randn(5, 4), torch.zeros(3, 4, dtype=torch.bfloat16), *torch.randn(2, 6, 4)
    for scale in (2.0, 0.5):
        assert torch.equal(
            used(x, other, [left, (right, 3)], scale=scale), file.mixed(x, other, [left, (right, 3)], scale=scale)
        )
    assert reasons() == {BY_KERNELS: 2}
    for unread in (other.float(), other[0]):
        assert torch.equal(used(x, unread, [left, (right, 3)]), file.mixed(x, unread, [left, (right, 3)]))
    assert torch.equal(used(x, other, [left, (right, 4)]), file.mixed(x, other, [left, (right, 4)]))
    assert torch.equal(used(x, other, [left, (right, 3)], "mean"), file.mixed(x, other, [left, (right, 3)], "mean"))
    others = {reason for reason in reasons() if reason != BY_KERNELS}
    assert {reason.partition(" is not ")[0] for reason in others} == {"unused", "parts", "mode"}


@pytest.mark.parametrize("call", ["x", "x, (y, None)"])
def test_inputs_of_get_inputs_may_be_nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    takes = "x" if call == "x" else "x, pair"
    value = "x" if call == "x" else "x + pair[0]"
    text = f"def f({takes}):\n    return ({value}).relu()\n\n\ndef get_inputs():\n"
    text += f"    x, y = torch.rand(5, 4), torch.rand(5, 4)\n    return [{call}]\n"
    program = plan_text(text, inputs=None, symbol="f")
    operator: Any = load_operator(program.task, program.render({}), tmp_path)
    monkeypatch.setattr(operator._runtime, "_not_on_one_gpu", lambda *_: "")
    file = types.ModuleType("file_of_f")
    exec(PRELUDE + text, file.__dict__)
    given = file.get_inputs()
    assert torch.equal(operator.use_f(file.f)(*given), file.f(*given))
    assert operator.calls()["fallback"] == {BY_KERNELS: 1}
