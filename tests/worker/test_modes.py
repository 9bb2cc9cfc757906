"""The mode that a module is captured in, and whether the other one computes the same."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from kernel_lsp.core.task import Task
from kernel_lsp.export.python.function_text import module_use
from kernel_lsp.worker.capture.modes import module_settings
from tests.worker.capturing import capture_text, make_case, tensor

BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(RATE)
        self.rate = RATE

    def forward(self, x):
        return self.drop(self.fc(x)) + F.dropout(x, self.rate, self.training)
"""
NORM = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.bn(x) * 2
"""
BRANCH = "class Net(nn.Module):\n    def forward(self, x):\n        return x * 2 if self.training else x * 3"
PLAIN = "class Net(nn.Module):\n    def forward(self, x):\n        return x * 2 if x.dim() == 2 else x"
SWITCH = "class Net(nn.Module):\n    def forward(self, x):\n        return x * (0.5 if self.training else 0.5)"


@pytest.mark.parametrize(
    ("text", "backward", "mode"),
    [
        (BLOCK.replace("RATE", "0.0"), False, None),
        (BLOCK.replace("RATE", "0.0"), True, None),
        (BLOCK.replace("RATE", "0.1"), False, False),
        (BLOCK.replace("RATE", "0.1"), True, False),
        (NORM, False, False),
        (NORM, True, True),
        (BRANCH, False, False),
        (BRANCH, True, True),
        (PLAIN, False, None),
        (SWITCH, True, None),
    ],
    ids=[
        *("dropout of 0", "dropout of 0, trained", "dropout", "dropout, trained"),
        *("batch norm", "batch norm, trained", "branch", "branch, trained", "no mode", "both branches alike"),
    ],
)
def test_the_mode_is_noted_where_the_other_one_computes_something_else(
    text: str, backward: bool, mode: bool | None
) -> None:
    check_mode(text, backward, mode)


def test_the_rate_of_a_dropout_is_no_setting_of_inference() -> None:
    settings = capture_text(BLOCK.replace("RATE", "0.1"), "Block", inputs=[tensor("x", 4, 8)]).module_settings
    assert "drop.p" not in settings
    assert settings["training"] is False


def test_inference_reads_running_statistics() -> None:
    task = capture_text(NORM, "Net", inputs=[tensor("x", 4, 8)])
    assert {"bn.running_mean", "bn.running_var"} <= {argument.qualified_name for argument in task.tensors}


def test_a_submodule_in_the_other_mode_is_noted() -> None:
    frozen = NORM.replace("nn.BatchNorm1d(8)", "nn.BatchNorm1d(8).eval()")
    task = capture_text(frozen, "Net", inputs=[tensor("x", 4, 8)], backward=True)
    modes = {name: value for name, value in task.module_settings.items() if name.endswith("training")}
    assert modes == {"training": True, "bn.training": False}


def check_mode(text: str, backward: bool, mode: bool | None) -> None:
    symbol = "Block" if "Block" in text else "Net"
    task = capture_text(text, symbol, inputs=[tensor("x", 4, 8)], backward=backward)
    assert task.module_settings.get("training") is mode, task.notes


HELD = """
import dataclasses


@dataclasses.dataclass
class Norm:
    eps: float = 1e-3
    unread: int = 3


@dataclasses.dataclass
class Config:
    width: int = 8
    scale: float = 2.0
    norm: Norm = dataclasses.field(default_factory=Norm)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.table, self.scales, self.none = Config(), {"a": 1.5, "b c": 2}, [1.0, 2.0], None
        self._gain, self._unread = 0.5, 1
        self.fn, self.act = F.gelu, nn.ReLU()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.act(self.fn(x))) * self.config.scale + self.config.norm.eps
        return x * self._gain * self.scales[1] + self.table["a"] if self.none is None else x


class Trainer:
    def __init__(self):
        self.scale = 2.0

    def penalty(self, x):
        return (x * self.scale).sum(-1)
"""


def test_what_a_module_holds_is_among_its_settings() -> None:
    """The graph has these values as constants: a module with others would be computed with them."""
    task = capture_text(HELD, "Block", inputs=[tensor("x", 4, 8)])
    of_config = {"config.scale": 2.0, "config.norm.eps": 0.001}
    others = {
        "table.a": 1.5,
        "table.b c": 2,
        "scales": (1.0, 2.0),
        "none": None,
        "fn.__name__": "gelu",
        "act.inplace": False,
    }
    assert task.module_settings == {**of_config, **others, "training": False}
    assert [a.qualified_name for a in task.arguments if a.qualified_name] == ["_gain"]
    assert task.module_code == {"": "Block.forward", "act": "ReLU"}


def test_names_are_read_in_files_of_bases_and_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base class's file computes with a private list, another private list is named as text alone."""
    base = "class Base(torch.nn.Module):\n    def forward(self, x):\n        return x * self._scales[1]\n"
    own = """
class Scaled(base_of_scaled.Base):
    def __init__(self):
        super().__init__()
        self._scales, self._shifts, self._unread = [1.0, 2.0], [3.0, 4.0], [5.0]

    def forward(self, x):
        return super().forward(x) + getattr(self, "_shifts")[1]
"""
    (tmp_path / "base_of_scaled.py").write_text(f"import torch\n\n\n{base}")
    (tmp_path / "own_of_scaled.py").write_text(f"import base_of_scaled\n\n{own}")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_of_scaled").Scaled()
    assert module_settings(module) == {"_scales": [1.0, 2.0], "_shifts": [3.0, 4.0]}


def test_what_a_module_of_torch_leaves_out_is_a_setting() -> None:
    """``RMSNorm(8, eps=1e-3)`` and ``RMSNorm(8)`` differ in this alone."""
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.pool = nn.RMSNorm(8), nn.AdaptiveAvgPool2d((None, 4))

    def forward(self, x):
        return self.pool(self.norm(x))
"""
    settings = capture_text(text, "Net", inputs=[tensor("x", 2, 3, 4, 8)]).module_settings
    assert settings == {"norm.eps": None, "pool.output_size": (None, 4)}


def test_an_object_that_is_no_module_has_settings() -> None:
    task = capture_text(HELD, "Trainer.penalty", inputs=[tensor("x", 4, 8)])
    assert (task.module_settings, task.module_code) == ({"scale": 2.0}, {"": "Trainer.penalty"})


def test_a_value_of_any_kind_is_a_setting() -> None:
    text = """
import enum
import functools
import numpy as np


class Reduction(enum.Enum):
    MEAN = 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.kind, self.dtype = np.int64(3), Reduction.MEAN, torch.float64
        self.act, self.bounds = functools.partial(F.leaky_relu, negative_slope=0.1), (0.0, float("inf"))

    def forward(self, x):
        x = self.act(x.clamp(*self.bounds)).to(self.dtype) * self.n
        return x.mean(-1) if self.kind is Reduction.MEAN else x
"""
    task = capture_text(text, "Net", inputs=[tensor("x", 4, 8)])
    expected = {"n": 3, "kind.name": "MEAN", "dtype": "torch.float64", "bounds": (0.0, math.inf)}
    of_partial = {"act": "partial([leaky_relu], negative_slope=0.1)"}
    assert task.module_settings == expected | of_partial
    assert Task.model_validate_json(task.model_dump_json()).module_settings == task.module_settings


CACHED = """
import functools


class Config:
    def __init__(self):
        self.scale, self.path, self.other, self.power, self.factor = 2.0, "nowhere", 5, 3, 1.0


@functools.lru_cache
def power_of(config):
    return config.power


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.layer_id, self.rate, self.kind = Config(), 3, 0.1, "scale"
        self.n = power_of(self.config)

    def forward(self, x, cache=None):
        if cache is not None:
            x = cache.update(x, self.layer_id)
        rate = 0.0
        return x * self.config.factor ** power_of(self.config) * getattr(self.config, self.kind) + rate
"""


def test_what_no_captured_call_reads_is_no_setting() -> None:
    """Further layers of a network, and layers whose configuration was loaded from a file, fell back: the number of a
    layer is read for a cache alone, and a path by no code. What a cached function has read is a setting."""
    task = capture_text(CACHED, "Attention", inputs=[tensor("x", 4, 8)])
    of_config = {"config.scale": 2.0, "config.power": 3, "config.factor": 1.0}
    settings = {name: value for name, value in task.module_settings.items() if "class" not in name}
    assert settings == {**of_config, "kind": "scale"}


def test_what_the_other_mode_reads_is_a_setting_of_an_operator_for_both() -> None:
    text = CACHED.replace("rate = 0.0", "rate = self.layer_id * (self.training and self.n > 9)")
    settings = capture_text(text, "Attention", inputs=[tensor("x", 4, 8)]).module_settings
    assert {"n", "layer_id"} <= settings.keys()
    assert "training" not in settings


def test_a_class_that_maps_names_has_all_attributes_as_settings() -> None:
    """Its own `__getattribute__` reads another attribute than the code asks for."""
    asked = "{'factor': 'other'}.get(name, name)"
    own = f"    def __getattribute__(self, name):\n        return object.__getattribute__(self, {asked})"
    text = CACHED.replace("@functools.lru_cache", f"{own}\n\n\n@functools.lru_cache")
    settings = capture_text(text, "Attention", inputs=[tensor("x", 4, 8)]).module_settings
    assert settings["config.other"] == 5


def test_code_that_reads_all_attributes_has_them_as_settings() -> None:
    text = CACHED.replace("rate = 0.0", "rate = len(vars(self.config))")
    task = capture_text(text, "Attention", inputs=[tensor("x", 4, 8)])
    assert {"config.path", "config.other"} < task.module_settings.keys()
    assert "layer_id" not in task.module_settings


def test_tied_weights_are_noted_for_the_operator_and_have_a_reference(tmp_path: Path) -> None:
    """The kernels take the weight once: a module with two weights would be computed with one of them."""
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))
"""
    task = capture_text(text, "Net", inputs=[tensor("x", 4, 8)])
    assert task.module_ties == {"second.weight": "first.weight"}
    assert 'tied={"second.weight": "first.weight"},' in [line.strip() for line in module_use(task)]
    case = make_case("forward", {"x": [4, 8], "second_weight": [8, 8]}, "normal", tmp_path)
    assert not case.is_degenerate
