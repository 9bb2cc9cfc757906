"""A folder of tasks stands for the tasks in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.errors import TargetError
from kernel_lsp.source.suite import expand_targets

KERNELBENCH = "class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n"


def write(path: Path, text: str = KERNELBENCH) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_and_task_folders_are_found_in_order_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "suite" / "level2" / "b.py")
    write(tmp_path / "suite" / "level1" / "a.py")
    write(tmp_path / "suite" / "norm" / "func_forward.py")
    write(tmp_path / "suite" / "norm" / "func_backward.py")
    assert expand_targets(["suite"], tmp_path) == ["suite/level1/a.py", "suite/level2/b.py", "suite/norm"]


def test_what_is_no_task_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "suite" / "a.py")
    write(tmp_path / "suite" / "helper.py", "def get_inputs():\n    return []\n")
    write(tmp_path / "suite" / "broken.py", "class Model(:\n")
    write(tmp_path / "suite" / "notes.txt")
    write(tmp_path / "suite" / "kernels" / "a.py")
    write(tmp_path / "suite" / ".hidden" / "a.py")
    (tmp_path / "suite" / "binary.py").write_bytes(b"\x00\xff")
    assert expand_targets(["suite"], tmp_path) == ["suite/a.py"]


def test_single_targets_stay_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "norm" / "func_forward.py")
    targets = ["model.py::f", "gone.py", "norm"]
    assert expand_targets(targets, tmp_path) == targets


def test_a_folder_without_a_task_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match="no KernelBench file") as caught:
        expand_targets(["empty"], tmp_path)
    assert caught.value.file == "empty"
