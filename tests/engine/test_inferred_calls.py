"""Shapes are inferred from the calls in other files of the workspace, too."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from kernel_lsp.engine.inferred import candidate_inputs
from kernel_lsp.source.inference import workspace_calls
from kernel_lsp.source.workspace_files import File

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


CONFIGURED = """\
from dataclasses import dataclass

@dataclass
class Sizes:
    width: int = 2 * 48
    out: int = 16

BASE = Sizes(out=32)
HEADS, WIDTH = 4, 0
N = 3 * 32
SIZES = {"n": 96, "m": 32}
"""
FACTORY = "from pkg.layers import Project\n\ndef build(n, m=32):\n    return Project(n, m)\n"


@pytest.mark.parametrize(
    "files",
    [
        {"pkg____init__": "from .layers import Project\n", "train": "import pkg\nmodel = pkg.Project(96, 32)\n"},
        {"pkg____init__": "from . import layers\nNet = layers.Project\n", "train": "import pkg\nm = pkg.Net(96, 32)\n"},
        {"train": "from pkg.layers import Project as P\nNet = P\nmodel = Net(96, m=32)\n"},
        {"pkg__factory": FACTORY + "\nmodel = build(96)\n"},
        {"pkg__factory": FACTORY, "train": "from pkg.factory import build\nmodel = build(n=96)\n"},
        {"train": "from functools import partial\nfrom pkg.layers import Project\nmake = partial(Project, 96, m=32)\n"},
        {"train": "from pkg.layers import Project\nfrom pkg.sizes import N\nmodel = Project(N, 32)\n"},
        {"train": "from pkg.layers import Project\nimport pkg.sizes as sizes\nmodel = Project(sizes.N, 32)\n"},
        {"train": "from pkg.layers import Project\nfrom pkg import sizes\nmodel = Project(sizes.N, 64 // 2)\n"},
        {"train": "from pkg.layers import Project\nfrom pkg.sizes import BASE as B\nmodel = Project(B.width, B.out)\n"},
        {
            "train": "from pkg.layers import Project\nfrom pkg.sizes import Sizes\n\ndef main():\n"
            "    sizes = Sizes(out=32)\n    return Project(sizes.width, m=sizes.out)\n"
        },
        {
            "train": "from pkg.layers import Project\nfrom pkg.sizes import Sizes\n\ndef main(sizes: Sizes):\n"
            "    return Project(sizes.width, m=32)\n"
        },
        {"train": "from pkg.layers import Project\nSIZES = dict(n=96, m=32)\nmodel = Project(**SIZES)\n"},
    ],
    ids=[
        *("package", "renamed in a package", "renamed", "factory", "factory of a third file", "partial"),
        *("constant", "module", "module of a package", "configuration", "local", "annotated", "dict"),
    ],
)
def test_what_another_file_builds_a_module_with_is_followed(tmp_path: Path, files: dict[str, str]) -> None:
    texts = proposed(tmp_path, "Project", pkg__sizes=CONFIGURED, **files)
    assert texts == ["# kernel-lsp: init: n=96, m=32", "# kernel-lsp: x=f32[4096, 96]"]


@pytest.mark.parametrize(
    "train",
    [
        "from pkg.sizes import WIDTH\nmodel = Project(WIDTH, 32)\n",
        "N = 96\nN = read()\nmodel = Project(N, 32)\n",
        "def main(n):\n    n = n + 1\n    n = 2\n    return Project(n, 32)\n",
        "N = N\nmodel = Project(N, 32)\n",
    ],
)
def test_what_the_text_does_not_say_is_no_argument(tmp_path: Path, train: str) -> None:
    text = f"from pkg.layers import Project\n{train}"
    assert proposed(tmp_path, "Project", pkg__sizes=CONFIGURED, train=text)[0] == "# kernel-lsp: init: n=1024, m=1024"


def test_files_are_read_once_for_all_that_a_factory_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six parameters took 42 s in a workspace of 1,200 files: all were read again for each."""
    names = ", ".join("abcdef")
    (tmp_path / "net.py").write_text(f"class Net:\n    def __init__(self, {names}): ...\n")
    (tmp_path / "make.py").write_text(f"from net import Net\n\n\ndef make({names}):\n    return Net({names})\n")
    (tmp_path / "other.py").write_text("# make\n")
    n_read: collections.Counter[str] = collections.Counter()
    read = workspace_calls.read_file

    def counted(path: Path, word: str) -> File | None:
        n_read[path.name] += 1
        return read(path, word)

    monkeypatch.setattr(workspace_calls, "read_file", counted)
    assert len([*workspace_calls.calls_elsewhere(tmp_path, tmp_path / "net.py", "Net")]) == 1
    assert n_read["other.py"] == 2  # for Net, and for make
