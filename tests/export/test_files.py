"""The pair of files is written whole or not at all, and never over somebody else's."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_lsp.errors import EnvironmentProblem, KernelLspError, TargetError
from kernel_lsp.export.files import INIT_TEXT, RuntimeFile, check_replaceable, write_operator_files

KERNEL, OPERATOR = "// a kernel\n", '"""An operator."""\n'
RUNTIME = RuntimeFile("_kernel_runtime_1", 1, '"""A runtime."""\n')
WRITTEN = ["__init__.py", "_kernel_runtime_1.py", "rms_norm.cu", "rms_norm.py"]


def write(directory: Path, name: str, kernel: str, operator: str, runtime: RuntimeFile = RUNTIME) -> tuple[Path, Path]:
    """Write an operator; return its kernel and its Python."""
    written = write_operator_files(directory, name, kernel, operator, runtime)
    return written[0], written[1]


def check_refused(directory: Path, error: type[KernelLspError], mentions: str) -> None:
    """Writing fails as said, and changes nothing."""
    before = contents(directory)
    with pytest.raises(error) as raised:
        write(directory, "rms_norm", "// new\n", '"""New."""\n')
    assert mentions in str(raised.value)
    assert raised.value.next_step
    assert contents(directory) == before


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*")} if directory.is_dir() else {}


def test_both_files_are_written_and_the_kernel_is_as_it_was_given(tmp_path: Path) -> None:
    kernel, operator = write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    assert kernel.read_text() == KERNEL
    assert operator.read_text().endswith(OPERATOR)
    assert sorted(contents(tmp_path)) == WRITTEN


def test_the_folder_is_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", "rms_norm", KERNEL, OPERATOR)
    assert (tmp_path / "a" / "b" / "rms_norm.cu").exists()


def test_our_own_files_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    kernel, operator = write(tmp_path, "rms_norm", "// better\n", '"""Better."""\n')
    assert kernel.read_text() == "// better\n"
    assert '"""Better."""' in operator.read_text()
    check_replaceable(tmp_path, "rms_norm", RUNTIME.module)


def test_a_foreign_operator_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rms_norm.py").write_text("my = 'own'\n")
    check_refused(tmp_path, TargetError, "rms_norm.py")


def test_a_foreign_kernel_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rms_norm.cu").write_text("// kernel-lsp: 1\n// mine\n")
    check_refused(tmp_path, TargetError, "rms_norm.cu")


def test_files_that_an_editor_made_and_has_not_saved_are_no_obstacle(tmp_path: Path) -> None:
    for file in ("cu", "py"):
        (tmp_path / f"scale.{file}").touch()
    assert check_replaceable(tmp_path, "scale", RUNTIME.module) == (tmp_path / "scale.cu", tmp_path / "scale.py")


def test_the_kernel_of_another_target_of_this_name_is_left_alone_while_that_exists(tmp_path: Path) -> None:
    directory, vit = tmp_path / "kernels", tmp_path / "vit.py"
    vit.write_text("class RMSNorm(nn.Module):\n    pass\n")
    write(directory, "rms_norm", "// kernel-lsp: 1\n// task: ../vit.py::RMSNorm\n", OPERATOR)
    check_replaceable(directory, "rms_norm", RUNTIME.module, "../vit.py::RMSNorm")
    for other in ("../gpt.py::RMSNorm", "../vit.py::rms_norm"):
        with pytest.raises(TargetError, match=r"the kernel of \.\./vit\.py::RMSNorm") as raised:
            check_replaceable(directory, "rms_norm", RUNTIME.module, other)
        assert "--out" in raised.value.next_step
    vit.write_text("class Renamed(nn.Module):\n    pass\n")
    check_replaceable(directory, "rms_norm", RUNTIME.module, "../gpt.py::RMSNorm")
    vit.unlink()
    check_replaceable(directory, "rms_norm", RUNTIME.module, "../gpt.py::RMSNorm")


@pytest.mark.parametrize("file", ["rms_norm.cu", "rms_norm.py", "_kernel_runtime_1.py"])
def test_a_file_changed_by_hand_is_left_alone(tmp_path: Path, file: str) -> None:
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    path = tmp_path / file
    path.write_text(path.read_text() + "\n")
    check_refused(tmp_path, TargetError, path.name)


def test_a_kernel_whose_operator_is_gone_is_left_alone(tmp_path: Path) -> None:
    _, operator = write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    operator.unlink()
    check_refused(tmp_path, TargetError, "rms_norm.cu")


def test_operators_of_one_version_share_a_runtime_that_newer_text_replaces(tmp_path: Path) -> None:
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    write(tmp_path, "softmax", KERNEL, OPERATOR, RuntimeFile(RUNTIME.module, 1, '"""Newer."""\n'))
    assert '"""Newer."""' in (tmp_path / "_kernel_runtime_1.py").read_text()
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)


def test_operators_of_two_versions_stand_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    before = contents(tmp_path)
    write(tmp_path, "softmax", KERNEL, OPERATOR, RuntimeFile("_kernel_runtime_2", 2, '"""Another."""\n'))
    assert contents(tmp_path).items() >= before.items()
    assert (tmp_path / "_kernel_runtime_2.py").is_file()


def test_a_folder_of_operators_is_a_package_that_no_installed_one_hides(tmp_path: Path) -> None:
    write(tmp_path / "kernels", "rms_norm", KERNEL, OPERATOR)
    assert (tmp_path / "kernels" / "__init__.py").read_text() == INIT_TEXT


def test_a_folder_of_the_users_is_not_made_a_package(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n")
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    assert not (tmp_path / "__init__.py").exists()


def test_other_files_in_the_folder_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n")
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    assert (tmp_path / "model.py").read_text() == "x = 1\n"


def test_a_folder_that_cannot_be_made_is_an_environment_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused(tmp_path / "file" / "below", EnvironmentProblem, "below")


def test_a_folder_in_place_of_the_operator_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rms_norm.py").mkdir()
    with pytest.raises(EnvironmentProblem):
        write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    assert [path.name for path in tmp_path.iterdir()] == ["rms_norm.py"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with disk_full_after(1000), pytest.raises(EnvironmentProblem):
        write(tmp_path, "rms_norm", KERNEL, '"""' + "x" * 5000 + '"""\n')
    assert contents(tmp_path) == {}


def test_a_full_disk_leaves_the_older_pair(tmp_path: Path) -> None:
    write(tmp_path, "rms_norm", KERNEL, OPERATOR)
    before = contents(tmp_path)
    with disk_full_after(1000), pytest.raises(EnvironmentProblem):
        write(tmp_path, "rms_norm", "// x\n", '"""' + "x" * 5000 + '"""\n')
    assert contents(tmp_path) == before


@contextmanager
def disk_full_after(n_bytes: int) -> Iterator[None]:
    """No file may grow past `n_bytes`: the write fails as on a full disk, with another number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
