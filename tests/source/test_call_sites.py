"""The calls of a target in the files of a workspace, rewritten to use its operator, and back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.source import call_sites, workspace_files
from kernel_lsp.source.call_sites import Operator, revert_operator, use_operator

MODEL = "import torch\n\n\nclass Scale(torch.nn.Module):\n    pass\n\n\ndef gate(x):\n    return x\n"
ABOVE = "from pkg.kernels.scale import use_scale\n"


def workspace(root: Path, **files: str) -> Operator:
    """Write ``pkg/model.py`` and the files, whose names have ``__`` for a folder."""
    texts = {"pkg/model.py": MODEL, "pkg/__init__.py": "", "pkg/kernels/__init__.py": ""}
    texts |= {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, newline="")
    return Operator(root / "pkg" / "model.py", "Scale", "forward", root / "pkg" / "kernels", "scale")


def check(root: Path, before: str, after: str, name: str = "train", n_sites: int = 1) -> None:
    """A file is rewritten, not a second time, and back."""
    operator = workspace(root, **{name: before})
    found = use_operator(root, operator)
    path = root / f"{name.replace('__', '/')}.py"
    assert (found.texts, found.n_sites) == ({path: after}, n_sites)
    path.write_text(after, newline="")
    assert use_operator(root, operator).n_sites == 0
    assert revert_operator(root, "scale").texts == {path: before}


@pytest.mark.parametrize(
    ("before", "call", "name"),
    [
        ("from pkg.model import Scale\n{}y = [Scale(1)]\n", "Scale(1)", "train"),
        ("from pkg.model import Scale as S\n{}y = S(\n    1\n)\n", "S(\n    1\n)", "train"),
        ("import pkg.model\n{}y = 'é', pkg.model.Scale(1)\n", "pkg.model.Scale(1)", "tools__train"),
        ("from pkg import model as m\r\n{}y = m.Scale(1)\r\n", "m.Scale(1)", "train"),
    ],
    ids=["a name", "an alias over lines", "a module from a folder", "a module with CRLF"],
)
def test_calls_in_other_files_use_the_operator_and_return(tmp_path: Path, before: str, call: str, name: str) -> None:
    above = ABOVE.replace("\n", "\r\n") if "\r" in before else ABOVE
    after = before.replace(call, f"use_scale({call})").format(above)
    check(tmp_path, before.format(""), after, name)


def test_the_operator_of_a_method_is_put_into_its_class(tmp_path: Path) -> None:
    before = "from pkg.model import Scale\n\ny = Scale(1).gate(2)\n"
    of_class = workspace(tmp_path, train=before)
    found = use_operator(tmp_path, replace(of_class, symbol="Scale.gate", method="gate"))
    assert [*found.texts.values()] == [f"from pkg.model import Scale\n{ABOVE}\ny = use_scale(Scale(1)).gate(2)\n"]


def test_operators_of_two_methods_are_each_put_in_once(tmp_path: Path) -> None:
    path, gate = tmp_path / "train.py", "scale_gate"
    operator = workspace(tmp_path, train="from pkg.model import Scale\n\ny = Scale(1)\n")
    operators = (operator, replace(operator, symbol="Scale.gate", method="gate", name=gate))
    for each in operators:
        path.write_text(use_operator(tmp_path, each).texts[path])
    assert [use_operator(tmp_path, each).n_sites for each in operators] == [0, 0]
    path.write_text(revert_operator(tmp_path, "scale").texts[path])
    above = "from pkg.model import Scale\nfrom pkg.kernels.scale_gate import use_scale_gate\n"
    assert path.read_text() == f"{above}\ny = use_scale_gate(Scale(1))\n"


def test_the_operator_of_a_kernelbench_file_is_put_into_its_model(tmp_path: Path) -> None:
    operator = workspace(tmp_path, train="from pkg.model import Model\n\ny = Model(1), (lambda: 1)()\n")
    (text,) = use_operator(tmp_path, replace(operator, symbol="")).texts.values()
    assert text.endswith("y = use_scale(Model(1)), (lambda: 1)()\n")


def test_a_class_in_a_class_is_called_by_all_of_its_names(tmp_path: Path) -> None:
    inside = (
        "class Net:\n    class Block:\n        pass\n\n    def __init__(self):\n        self.block = self.Block(8)\n"
    )
    outside = (
        "from pkg import model\nfrom pkg.model import Net as N\n\nx = N.Block(8), model.Net.Block(8), Block(8), N(8)\n"
    )
    operator = workspace(tmp_path, train=outside, pkg__model=inside)
    found = use_operator(tmp_path, replace(operator, symbol="Net.Block", name="net_block"))
    assert found.n_sites == 3
    assert "self.block = use_net_block(self.Block(8))\n" in found.texts[operator.file]
    assert (
        "x = use_net_block(N.Block(8)), use_net_block(model.Net.Block(8)), Block(8), N(8)\n"
        in found.texts[tmp_path / "train.py"]
    )


@pytest.mark.parametrize(
    ("passed_on", "before", "call"),
    [
        ("from .model import Scale", "from pkg import Scale", "Scale(1)"),
        ("from .model import *", "import pkg as p", "p.Scale(1)"),
        ("from .model import Scale as Scale", "from pkg import *", "Scale(1)"),
        ("from .deep import Scale", "from pkg import Scale as Deep", "Deep(1)"),
        ("from . import model as m", "import pkg", "pkg.m.Scale(1)"),
    ],
)
def test_a_name_that_a_package_passes_on_is_the_targets(tmp_path: Path, passed_on: str, before: str, call: str) -> None:
    deep = "from .model import Scale\n"
    operator = workspace(tmp_path, train=f"{before}\ny = {call}\n", pkg__deep=deep)
    (tmp_path / "pkg" / "__init__.py").write_text(f"{passed_on}\n")
    found = use_operator(tmp_path, operator)
    assert found.texts == {tmp_path / "train.py": f"{before}\n{ABOVE}y = use_scale({call})\n"}


def test_a_name_of_another_file_is_not_the_targets(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    operator = workspace(
        tmp_path, train="from pkg.other import Scale\ny = Scale(1)\n", pkg__other="class Scale: pass\n"
    )
    assert not use_operator(tmp_path, operator).texts


def test_a_file_of_a_package_below_imports_from_above(tmp_path: Path) -> None:
    """The operator's folder is beside the target's file, above the file that calls."""
    before = "from .. import Scale\n\ny = Scale(1)\n"
    operator = workspace(tmp_path, pkg__sub__train=before)
    (tmp_path / "pkg" / "__init__.py").write_text("from .model import Scale\n")
    after = before.replace("\n", "\nfrom ..kernels.scale import use_scale\n", 1).replace(
        "Scale(1)", "use_scale(Scale(1))"
    )
    assert [*use_operator(tmp_path, operator).texts.values()] == [after]


def test_a_file_of_the_package_imports_as_it_did(tmp_path: Path) -> None:
    before = "from .model import Scale\n\ny = Scale(1), Scale(2)\n"
    after = before.replace("\n", "\nfrom .kernels.scale import use_scale\n", 1).replace(
        "Scale(1)", "use_scale(Scale(1))"
    )
    check(tmp_path, before, after.replace("Scale(2)", "use_scale(Scale(2))"), "pkg__other", n_sites=2)


def test_a_script_that_imports_later_imports_the_operator_before_its_first_use(tmp_path: Path) -> None:
    before = "from pkg.model import Scale\n{}\n# %%\n{}\n\n# %%\nimport math\n\nz = math.pi\n"
    after = before.format(ABOVE, "y = use_scale(Scale(1))")
    check(tmp_path, before.format("", "y = Scale(1)"), after)


def test_a_use_through_the_operator_s_module_is_one(tmp_path: Path) -> None:
    text = "from pkg.model import Scale\nfrom pkg.kernels import scale\n\ny = scale.use_scale(Scale(1), report=True)\n"
    assert use_operator(tmp_path, workspace(tmp_path, train=text)).texts == {}


def test_what_is_another_name_stays(tmp_path: Path) -> None:
    other = "from other import Scale\n\ny = Scale(1)\n"
    operator = workspace(
        tmp_path, other=other, unused="from pkg.model import Scale\n", broken="from pkg.model import Scale("
    )
    assert use_operator(tmp_path, operator).texts == {}


def test_tests_go_on_to_see_pytorch_s_code(tmp_path: Path) -> None:
    call = "from pkg.model import Scale\n\ny = Scale(1)\n"
    operator = workspace(tmp_path, tests__helpers=call, test_model=call, conftest=call, train=call, contest=call)
    found = use_operator(tmp_path, operator)
    assert (set(found.texts), found.n_in_tests) == ({tmp_path / "train.py", tmp_path / "contest.py"}, 3)


def test_a_limit_ends_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = workspace(tmp_path, a="from pkg.model import Scale\nScale(1)\n")
    monkeypatch.setattr(call_sites, "MAX_FILES", 0)
    assert not use_operator(tmp_path, operator).is_complete
    monkeypatch.setattr(workspace_files, "MAX_FILE_BYTES", 8)
    assert use_operator(tmp_path, operator).texts == {}


@pytest.mark.parametrize("init", [True, False], ids=["package", "namespace package"])
def test_the_targets_own_file_is_imported_and_run_as_before(tmp_path: Path, init: bool) -> None:
    (tmp_path / ".git").mkdir()
    own = "def gate(x):\n    return x\n\n\nprint(gate(3))\n"
    operator = Operator(tmp_path / "lib" / "ops.py", "gate", "", tmp_path / "lib" / "kernels", "gate")
    files = {
        "lib/ops.py": own,
        "lib/kernels/__init__.py": "",
        "lib/kernels/gate.py": "def use_gate(f):\n    return f\n",
    }
    for name, text in (files | ({"lib/__init__.py": ""} if init else {})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = use_operator(tmp_path, operator)
    assert found.n_sites == 1
    (tmp_path / "lib" / "ops.py").write_text(found.texts[tmp_path / "lib" / "ops.py"])
    for command in (["-c", "import lib.ops"], ["-m", "lib.ops"], ["lib/ops.py"]):
        ran = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (ran.stdout, ran.stderr) == ("3\n", "")
