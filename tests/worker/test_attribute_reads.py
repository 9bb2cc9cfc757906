"""Find the plain attributes of a module that its code can read: others may differ between instances."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.worker.capture.modes import module_settings

NUMBERS = itertools.count()
ATTRIBUTES = "self.layer_id, self.scale, self.shift, self._gain, self._unread, self.other = 3, 2, 1, [4, 5], 6, 7"
HELPER = """
def scaled(module, x):
    return x * module.scale


TABLE = {"scaled": [scaled]}
GETTER = operator.attrgetter("shift")


class Factor:
    def __init__(self, module):
        self.value = module.shift


class Base(torch.nn.Module):
    def extra(self, x):
        return x + self._gain[0]

    def unused(self, x):
        return x + self.other
"""
READ_NOTHING = "def forward(self, x):\n        return x * 2"
BY_METHOD = (
    "def forward(self, x):\n        return self.shifted(x)\n\n    def shifted(self, x):\n        return x + self.shift"
)
PROPERTY = (
    "def forward(self, x):\n        return x * self.twice\n\n"
    "    @property\n    def twice(self):\n        return self.scale"
)
STORED = (
    "def forward(self, x):\n        return x * self.scale\n\n    def extra_repr(self):\n        return str(self.other)"
)
INNER = "def forward(self, x):\n        from {helper} import scaled\n        return scaled(self, x)"
DECORATED = "@torch.no_grad()\n    def forward(self, x):\n        return (lambda y: y * self.scale)(x)"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (READ_NOTHING, ""),
        (BY_METHOD, "shift"),
        (PROPERTY, "scale"),
        (STORED, "scale"),
        (DECORATED, "scale"),
        (INNER, "scale"),
        ("def forward(self, x):\n        return {helper}.scaled(self, x)", "scale"),
        ("def forward(self, x):\n        return x * {helper}.Factor(self).value", "shift"),
        ("def forward(self, x):\n        return self.extra(x)", "_gain"),
        ("def forward(self, x):\n        return x * getattr(self, 'scale') + hasattr(self, 'shift')", "scale shift"),
        ("def forward(self, x):\n        return x * operator.attrgetter('scale')(self)", "scale"),
        ("def forward(self, x):\n        return {helper}.TABLE['scaled'][0](self, x)", "scale"),
        ("def forward(self, x):\n        return x * {helper}.GETTER(self)", "shift"),
    ],
    ids=[
        *("nothing", "by a method", "by a property", "printed alone", "decorated", "import in a function"),
        *(
            "function of a file",
            "constructor",
            "base class",
            "by text",
            "by attrgetter",
            "table",
            "attrgetter of a file",
        ),
    ],
)
def test_only_what_the_code_can_read_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, read: str
) -> None:
    assert sorted(settings_of(tmp_path, monkeypatch, body)) == sorted(read.split())


@pytest.mark.parametrize(
    "body",
    [
        "def forward(self, x):\n        return x * getattr(self, 'sca' + 'le')",
        "def forward(self, x):\n        return x * sum(map(getattr, [self], ['scale']))",
        "def forward(self, x):\n        return x * vars(self)['scale']",
        "def forward(self, x):\n        return x * self.__dict__['sc' + 'ale']",
        "def forward(self, x):\n        return x * eval('self.sc' + 'ale')",
    ],
    ids=["computed", "passed on", "vars", "__dict__", "eval"],
)
def test_all_are_settings_where_names_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    assert len(settings_of(tmp_path, monkeypatch, body)) == 6


@pytest.mark.parametrize(
    "body",
    [
        "from {installed} import scaled\n        return scaled(self, x)",
        "import {installed}\n        return {installed}.scaled(self, x)",
    ],
    ids=["by name", "by module"],
)
def test_a_function_of_an_installed_package_reads_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """It is given the module whole; a scale that no line of the user's reads is a setting nevertheless."""
    packages, name = tmp_path / "site-packages", f"installed_for_reads_{next(NUMBERS)}"
    packages.mkdir()
    (packages / f"{name}.py").write_text("def scaled(module, x):\n    return x * module.scale\n")
    monkeypatch.syspath_prepend(packages)
    importlib.import_module(name)
    method = f"def forward(self, x):\n        {body.replace('{installed}', name)}"
    assert list(settings_of(tmp_path, monkeypatch, method)) == ["scale"]


INSTALLED_CONFIGURATION = """class Config:
    attribute_map = {"hidden": "width"}

    def __init__(self):
        self._kind, self.width, self.other = "eager", 64, 3

    @property
    def kind(self):
        return self._kind

    def __getattribute__(self, name):
        return object.__getattribute__(self, object.__getattribute__(self, "attribute_map").get(name, name))
"""


def test_what_an_installed_class_computes_is_compared_by_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied LlamaAttention asks `config._attn_implementation`, a property of transformers' class: captured without
    one, kernels without a causal mask stood for a loaded model's."""
    packages, name = tmp_path / "site-packages", f"installed_for_reads_{next(NUMBERS)}"
    packages.mkdir()
    (packages / f"{name}.py").write_text(INSTALLED_CONFIGURATION)
    monkeypatch.syspath_prepend(packages)
    body = "x * self.config.hidden if self.config.kind == 'eager' else x"
    settings_of(tmp_path, monkeypatch, f"def forward(self, x):\n        return {body}")
    module = importlib.import_module(f"module_of_reads_{next(NUMBERS) - 1}").Scaled()
    module.config = importlib.import_module(name).Config()
    assert module_settings(module) == {"config.hidden": 64, "config.kind": "eager"}


def settings_of(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> dict[str, Any]:
    number = next(NUMBERS)
    helper, own = f"helper_of_reads_{number}", f"module_of_reads_{number}"
    head = f"import operator\n\nimport torch\nimport {helper}\n\n\nclass Scaled({helper}.Base):\n"
    init = f"    def __init__(self):\n        super().__init__()\n        {ATTRIBUTES}\n\n"
    (directory / f"{helper}.py").write_text(f"import operator\n\nimport torch\n\n{HELPER}")
    (directory / f"{own}.py").write_text(f"{head}{init}    {body.replace('{helper}', helper)}\n")
    monkeypatch.syspath_prepend(directory)
    return module_settings(importlib.import_module(own).Scaled())


def test_what_the_code_runs_without_is_a_setting_while_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "x * getattr(self, 'gain', 1) * self.shift.get('bias', 2) if 'b c' in self.shift else x"
    settings_of(tmp_path, monkeypatch, f"def forward(self, x):\n        return {body}")
    module = importlib.import_module(f"module_of_reads_{next(NUMBERS) - 1}").Scaled()
    module.shift = {"a": 1}
    absent = {"gain": None, "shift.bias": None, "shift.b c": None}
    assert module_settings(module) == {"shift.a": 1, **absent}


CONFIGURATION = """class Config:
    def __init__(self):
        self.width, self.kind = 64, "eager"

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)
"""


@pytest.mark.parametrize(("body", "is_read"), [("x * self.scale", False), ("x * self.config.width", True)])
def test_a_configuration_counts_where_the_code_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, *, is_read: bool
) -> None:
    settings_of(tmp_path, monkeypatch, f"def forward(self, x):\n        return {body}")
    module = importlib.import_module(f"module_of_reads_{next(NUMBERS) - 1}").Scaled()
    space: dict[str, Any] = {"__name__": type(module).__module__}
    exec(compile(CONFIGURATION, "config.py", "exec"), space)
    module.config = space["Config"]()
    found = module_settings(module)
    assert ("config.kind" in found) == is_read
    assert ("layer_id" in found) == is_read, "__getattribute__ may read every attribute"


def test_hooks_and_functions_that_a_module_holds_are_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def forward(self, x):\n        return self.act(x)"
    settings_of(tmp_path, monkeypatch, body)
    module = importlib.import_module(f"module_of_reads_{next(NUMBERS) - 1}").Scaled()
    module.act = lambda x: x * module.scale
    assert "scale" in module_settings(module)
    module.register_forward_pre_hook(lambda part, inputs: inputs[0] + part.shift)
    assert "shift" in module_settings(module)


def test_what_the_runtime_of_operators_reads_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run of a module whose part used an operator had other settings, and was refused."""
    runtime = f"_kernel_runtime_{next(NUMBERS)}"
    text = "    @functools.wraps(own)\n    def computed(self, x):\n        return own(self, x + self.shift)\n"
    (tmp_path / f"{runtime}.py").write_text(f"import functools\n\n\ndef over(own):\n{text}    return computed\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings_of(tmp_path, monkeypatch, "def forward(self, x):\n        return x * self.scale")
    module = importlib.import_module(f"module_of_reads_{next(NUMBERS) - 1}").Scaled()
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": importlib.import_module(runtime).over(kind.forward)})
    assert sorted(module_settings(module)) == ["scale"]


def test_settings_are_the_same_in_each_process(tmp_path: Path) -> None:
    """A resumed run compares them. Sets of names are in another order in each process, and code that reads attributes
    by computed names ends the search for further ones."""
    helpers = [f"    def part_{n}(self, x):\n        return x * getattr(self, 'gain_{n}', 1)\n" for n in range(8)]
    calls = " + ".join(f"self.part_{n}(x)" for n in range(8))
    forward = f"    def forward(self, x):\n        return {calls} + self.named(x)\n"
    named = "    def named(self, x):\n        return x * getattr(self, 'sca' + 'le')\n"
    text = f"import torch\n\n\nclass Net(torch.nn.Module):\n    scale = 2\n\n{forward}{named}{''.join(helpers)}"
    (tmp_path / "net.py").write_text(text)
    program = (
        "import net; from kernel_lsp.worker.capture.modes import module_settings; print(module_settings(net.Net()))"
    )
    paths = os.pathsep.join([os.getcwd(), str(tmp_path)])
    found = {
        subprocess.check_output(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            text=True,
            timeout=120,
        )
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
