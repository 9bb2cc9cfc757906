"""Functions among a module's settings: an operator tells other code, constants, closures and defaults from its own."""

from __future__ import annotations

import functools
import runpy
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_lsp.worker.capture.modes import module_code, module_settings, module_ties
from kernel_lsp.worker.shipped.operator_module import ModuleUse
from kernel_lsp.worker.shipped.operator_settings import UNCOMPARABLE, code_digest, setting_text

from .loading import load_operator
from .other_samples import RMS_NORM
from .samples import fresh_name

FACTOR = 2.0
TABLE = torch.ones(2)


class Scaled(torch.nn.Module):
    def __init__(self, fn: Any, k: float = 1.0) -> None:
        super().__init__()
        self.fn, self.k = fn, k

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fn(x)
        return result


class Halved(torch.nn.Module):
    factor = 0.5
    steps = {0: 1}

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.held = held

    def half(self, x: Tensor) -> Tensor:
        return x * self.factor * self.steps[0] if self.held is None else x

    def forward(self, x: Tensor) -> Tensor:
        return self.half(x)


class Doubled(Halved):
    factor = 2.0


class Squared(Halved):
    def half(self, x: Tensor) -> Tensor:
        return x * x


class Named(Halved):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def extra_repr(self) -> str:
        return self.name


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: float) -> None:
        self.held = held


class Both(torch.nn.Module):
    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


def linears(*, is_tied: bool) -> Both:
    both = Both(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    if is_tied:
        both.second.weight = both.first.weight
    return both


def changed(module: torch.nn.Module, **values: Any) -> torch.nn.Module:
    for name, value in values.items():
        setattr(module, name, value)
    return module


class Twice:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


class Thrice:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 3


def closed_over(k: Any) -> Callable[[Any], Any]:
    return lambda x: x * k


def without_gradients(k: float) -> Any:
    @torch.no_grad()
    def fn(x: Tensor) -> Tensor:
        return x * k

    return fn


def scaled_by(k: float) -> Any:
    def fn(x: Tensor, k: float = k) -> Tensor:
        return x * k

    return fn


@pytest.mark.parametrize(
    ("captured", "other"),
    [
        (lambda x: x * 2, lambda x: x + 2),
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * FACTOR, lambda x: x * 2.0),
        (closed_over(2.0), closed_over(3.0)),
        (scaled_by(2.0), scaled_by(3.0)),
        (closed_over([1, {"a": 2}]), closed_over([1, {"a": 3}])),
        (closed_over(lambda: 2), closed_over(lambda: 3)),
        (without_gradients(2.0), without_gradients(3.0)),
        (functools.partial(F.leaky_relu, negative_slope=0.1), functools.partial(F.leaky_relu, negative_slope=0.2)),
        (functools.partial(F.leaky_relu, 0.1), functools.partial(F.elu, 0.1)),
        (functools.partial(map, lambda x: x * 2), functools.partial(map, lambda x: x * 3)),
        ([torch.relu, lambda x: x * 2], [torch.relu, lambda x: x * 3]),
        (Twice(), Thrice()),
    ],
    ids=[
        *("code", "constants", "globals", "closure", "default", "nested closure", "function in a closure", "decorated"),
        *("keyword of a partial", "function of a partial", "lambda in a partial", "list", "class of an object"),
    ],
)
def test_other_functions_are_other_settings(captured: Any, other: Any) -> None:
    use = ModuleUse("forward", ["x"], [], module_settings(Scaled(captured)))
    assert use.why_not(Scaled(captured)) == ""
    assert "and the kernels were made for" in use.why_not(Scaled(other))


def test_the_same_code_made_again_is_the_same_setting() -> None:
    use = ModuleUse("forward", ["x"], [], module_settings(Scaled(closed_over(2.0))))
    assert use.why_not(Scaled(closed_over(2.0))) == ""


def test_a_closure_over_the_module_is_comparable_and_over_another_is_not() -> None:
    module, other = Scaled(None), Scaled(None)
    module.fn = closed_over(module)
    assert UNCOMPARABLE not in setting_text(module.fn, module)
    assert UNCOMPARABLE in setting_text(module.fn, other)


@pytest.mark.parametrize(
    "fn", [lambda x: x * TABLE, closed_over(torch.ones(2)), functools.partial(torch.mul, torch.ones(2))]
)
def test_what_cannot_be_compared_is_left_to_pytorch(fn: Any) -> None:
    module = Scaled(fn)
    settings = module_settings(module)
    assert UNCOMPARABLE in settings["fn"]
    assert "fn is " in ModuleUse("forward", ["x"], [], settings).why_not(module)


def test_a_long_text_is_a_digest_that_still_tells() -> None:
    one, two = setting_text(closed_over(list(range(1000)))), setting_text(closed_over(list(range(1, 1001))))
    assert len(one) < 60
    assert one != two
    assert UNCOMPARABLE in setting_text(closed_over([*range(1000), TABLE]))


def test_a_text_is_the_same_in_each_process() -> None:
    """An operator's file has it. Sets of texts are in another order in each process."""
    program = "from tests.export.test_operator_settings import *; print(setting_text(closed_over({'a', 'bc', 'def'})))"
    commands = [[sys.executable, "-c", program], [sys.executable, "-R", "-c", program]]
    texts = {subprocess.check_output(each, text=True, timeout=120) for each in commands}
    assert texts == {f"{setting_text(closed_over({'a', 'bc', 'def'}))}\n"}


def test_compiled_code_compares_functions() -> None:
    use = ModuleUse("forward", ["x"], [], module_settings(Scaled(closed_over(2.0))))

    def call(module: Scaled, x: Tensor) -> Tensor:
        return x + (1 if use.why_not(module) == "" else 2)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for fn, expected in ((closed_over(2.0), 1.0), (closed_over(3.0), 2.0)):
        torch._dynamo.reset()
        assert compiled(Scaled(fn), torch.zeros(1)).item() == expected


def use_of(module: torch.nn.Module) -> ModuleUse:
    code = {name: path for path, name in module_code(module, "forward").items()}
    return ModuleUse("forward", ["x"], [], module_settings(module), code=code, tied=module_ties(module))


SHARED = Halved()


@pytest.mark.parametrize(
    ("captured", "other", "says"),
    [
        (Halved(), Doubled(), "this is Doubled.factor"),
        (Halved(), Squared(), "this is Squared.half"),
        (Squared(), Halved(), "this is Halved.forward"),
        (Halved(), changed(Halved(), factor=0.25), "factor is 0.25"),
        (Halved([[1, 2]]), Halved([[1, 3]]), "held is [[1, 3]]"),
        (Halved({0: 1}), Halved({0: 2}), "held is (0=2)"),
        (Halved(Fraction(1, 3)), Halved(Fraction(1, 5)), "held is Fraction(1, 5)"),
        (Halved(Decimal("0.1")), Halved(Decimal("0.2")), "held is Decimal('0.2')"),
        (Halved(deque([1, 2])), Halved(deque([2, 1])), "held is [2, 1]"),
        (Halved([[1] * 33]), Halved([[1] * 32 + [2]]), "held is [[1"),
        (Halved({"a.b": 1}), Halved({"a.b": 2}), "held is (a.b=2)"),
        (Halved(), changed(Halved(), steps={0: 7}), "steps is (0=7)"),
        (Halved(slice(0, 2)), Halved(slice(2, 4)), "held is slice(2"),
        (Halved({"a"}), Halved({"b"}), "held is ['b']"),
        (Halved(Slotted(1.0)), Halved(Slotted(2.0)), "held.held is 2.0"),
        (Halved([Slotted(1.0)]), Halved([Slotted(2.0)]), "held.0.held is 2.0"),
        (Halved([Slotted(1.0)]), Halved([Slotted(1.0), Slotted(1.0)]), "held.1 is"),
        (Both(SHARED, SHARED), Both(SHARED, Halved()), "second is not first"),
        (linears(is_tied=True), linears(is_tied=False), "second.weight is not first.weight"),
        (Both(SHARED, Squared()), Both(SHARED, changed(Squared(), forward=torch.relu)), "second has a 'forward'"),
        (Both(SHARED, Squared()), Both(SHARED, changed(Squared(), half=torch.relu)), "second has a 'half'"),
        (Squared(), changed(Squared(), half=torch.relu), "this module has a 'half'"),
    ],
)
def test_a_module_that_computes_something_else_is_pytorchs(captured: Any, other: Any, says: str) -> None:
    use = use_of(captured)
    assert not use.why_never(type(captured))
    assert not use.why_not(captured)
    assert (use.why_never(type(other)) or use.why_not(other)).startswith(says)


def test_a_subclass_that_overrides_no_code_is_computed() -> None:
    use = use_of(Halved())
    assert not use.why_never(Named)
    assert not use.why_not(Named("a"))


def test_compiled_code_compares_containers_and_ties() -> None:
    use = use_of(Both(SHARED, SHARED))
    held = use_of(Halved([[1, 2], [3]]))
    compiled = torch.compile(lambda module: bool(use.why_not(module)), backend="eager", fullgraph=True)
    assert not compiled(Both(SHARED, SHARED))
    assert compiled(Both(SHARED, Halved()))
    compiled = torch.compile(lambda module: bool(held.why_not(module)), backend="eager", fullgraph=True)
    assert not compiled(Halved([[1, 2], [3]]))
    assert compiled(Halved([[1, 2], [4]]))
    of_objects = use_of(Halved([Slotted(1.0)]))
    compiled = torch.compile(lambda module: bool(of_objects.why_not(module)), backend="eager", fullgraph=True)
    assert not compiled(Halved([Slotted(1.0)]))
    assert compiled(Halved([Slotted(2.0)]))
    helped = use_of(Both(SHARED, Squared()))
    compiled = torch.compile(lambda module: bool(helped.why_not(module)), backend="eager", fullgraph=True)
    assert not compiled(Both(SHARED, Squared()))
    assert compiled(Both(SHARED, changed(Squared(), half=torch.relu)))
    tied = use_of(linears(is_tied=True))
    compiled = torch.compile(lambda module: bool(tied.why_not(module)), backend="eager", fullgraph=True)
    assert not compiled(linears(is_tied=True))
    assert compiled(linears(is_tied=False))


CODE = """
import functools


def helper(x):
    return x * 2


class Inner:
    def helped(self, x):
        return helper(x) + 1

    forward = helped


class Net:
    def unread(self):
        return 0

    @functools.cached_property
    def gain(self):
        return 3

    def forward(self, x):
        return self.inner.helped(x) * self.gain
"""


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("", "", True),
        ("return 0", "return 1", True),
        ("return 0", '"""Unread."""\n        return 0  # nothing', True),
        ("return helper(x)", "return use_helper(helper)(x)", True),
        ("x * 2", "x * 3", False),
        ("+ 1", "+ 2", False),
        ("return 3", "return 4", False),
        ("* self.gain", "- self.gain", False),
    ],
)
def test_edited_code_has_another_digest(tmp_path: Path, before: str, after: str, is_same: bool) -> None:
    """The operator would go on to compute what the code was at the capture."""
    digests = []
    for name, text in (("one.py", CODE), ("two.py", CODE.replace(before, after))):
        (tmp_path / name).write_text(text)
        found = runpy.run_path(str(tmp_path / name))
        digests.append(code_digest(found["Net"].forward, frozenset([found["Net"], found["Inner"]])))
    assert digests[0]
    assert (digests[0] == digests[1]) is is_same


def test_a_digest_is_the_same_in_each_version_of_python() -> None:
    """The operator's file has it. This one is of 3.11, 3.12 and 3.13, whose ``ast.unparse`` and ``ast.dump`` differ."""
    assert code_digest(formatted) == "589d434a"


def formatted(x: Tensor, names: dict[str, int], width: int = 4) -> Tensor:
    if width < 1:
        raise ValueError(f"{names['width']!r:>{width}} of {{x}}: '{width}'")
    return x[:, None, ..., ::2] * 1e-5


def test_code_that_was_edited_is_pytorchs(tmp_path: Path) -> None:
    name = fresh_name("twice")
    task = RMS_NORM.task(name).model_copy(update={"code_digest": "12345678"})
    operator = load_operator(task, RMS_NORM.cu_text(name), tmp_path)
    with pytest.warns(UserWarning, match="the code has changed since"):
        assert getattr(operator, f"use_{name}")(closed_over) is closed_over
