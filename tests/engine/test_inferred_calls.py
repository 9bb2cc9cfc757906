"""Shapes are inferred from the calls in other files of the workspace, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.engine.inferred import candidate_inputs

LAYERS = """\
import torch

class Project(torch.nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.layer = torch.nn.Linear(n, m)

    def forward(self, x):
        return self.layer(x)

def smooth(x: torch.Tensor, by: float, floor: float = 0.0):
    return torch.clamp(x * by, min=floor)
"""
TRAIN = "WIDTH = 96\nmodel = Project(WIDTH, m=32)\ny = smooth(model(z), 0.25, floor=0.125)\n"


def proposed(root: Path, symbol: str, **files: str) -> list[str]:
    (root / ".git").mkdir()
    for name, text in {"pkg__layers": LAYERS, "pkg____init__": "", **files}.items():
        path = root / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return [*candidate_inputs(root / "pkg" / "layers.py", symbol)[0].texts]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("train", "from pkg.layers import Project, smooth\n"),
        ("pkg__train", "from .layers import *\nfrom .layers import Project, smooth\n"),
    ],
)
def test_a_module_and_a_function_are_called_as_in_another_file(tmp_path: Path, name: str, head: str) -> None:
    given = {name: head + TRAIN}
    assert proposed(tmp_path, "Project", **given) == ["# kernel-lsp: init: n=96, m=32", "# kernel-lsp: x=f32[4096, 96]"]


def test_a_number_of_a_call_is_proposed_where_the_parameter_has_a_default_too(tmp_path: Path) -> None:
    train = f"from pkg import layers\n{TRAIN.replace('smooth(', 'layers.smooth(')}"
    assert proposed(tmp_path, "smooth", train=train) == ["# kernel-lsp: x=f32[1024, 4096], by=0.25, floor=0.125"]


def test_calls_of_tests_and_of_another_module_s_name_say_nothing(tmp_path: Path) -> None:
    files = {"tests__test_it": f"from pkg.layers import Project\n{TRAIN}", "other": f"from far import Project\n{TRAIN}"}
    assert proposed(tmp_path, "Project", **files)[0] == "# kernel-lsp: init: n=1024, m=1024"
