"""A folder of tasks stands for the tasks in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.errors import TargetError
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.source.suite import BenchTask, expand_targets, expand_tasks, sample_tasks

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


SUITE = """
peers = "peers.py"
[[task]]
target = "norms.py::rms_norm"
dtypes = ["bf16"]
backward = true
peers = ["liger"]
[[task]]
target = "linear"
"""


def test_a_suite_gives_a_row_per_dtype_with_its_backward_and_peers(tmp_path: Path) -> None:
    write(tmp_path / "s" / "suite.toml", SUITE)
    peers = (f"{tmp_path / 's' / 'peers.py'}::liger",)
    norm = "s/norms.py::rms_norm"
    rows = [BenchTask(norm, True, peers), BenchTask(f"{norm}_bf16", True, peers), BenchTask("s/linear")]
    assert expand_tasks(["s", "m.py::f"], tmp_path, backward=True) == [*rows, BenchTask("m.py::f", True)]


def test_a_suite_that_is_no_table_names_its_file(tmp_path: Path) -> None:
    write(tmp_path / "s" / "suite.toml", "task = 3")
    with pytest.raises(TargetError, match="cannot be read"):
        expand_tasks(["s"], tmp_path, backward=False)


def test_a_sample_depends_on_its_seed_alone_and_keeps_the_order() -> None:
    tasks = [BenchTask(f"t{number:02}") for number in range(50)]
    drawn = sample_tasks(tasks, 20, 0)
    assert drawn == sample_tasks(tasks, 20, 0) == sorted(drawn, key=lambda task: task.target)
    assert len(drawn) == 20
    assert drawn != sample_tasks(tasks, 20, 1)


def test_the_suite_of_the_checkout_names_functions_and_folders_that_exist() -> None:
    root = Path(__file__).parents[2]
    tasks = expand_tasks(["benchmarks/suite"], root, backward=False)
    assert len(tasks) == 11 + 3 * 32
    for task in tasks:
        read_target(task.target, root)
        for peer in task.peers:
            file, _, name = peer.partition("::")
            assert f"def {name}(" in Path(file).read_text()


def test_a_number_behind_a_task_folder_is_its_configuration() -> None:
    folder = "benchmarks/suite/robust_kbench/layernorm"
    root = Path(__file__).parents[2]
    assert read_target(f"{folder}::3", root).configuration == 2
    with pytest.raises(TargetError, match="a folder has no symbol"):
        read_target(f"{folder}::f", root)
