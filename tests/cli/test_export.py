"""`kernel-lsp export`, from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from tests.cli.commands import Ran, run, run_here, write

TARGET = """
from torch import Tensor
import torch


# kernel-lsp: x=f32[8, 16], weight=f32[16], eps=1e-6
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
"""
KERNEL = (Path(__file__).parent.parent / "export" / "rms_norm.cu").read_text().replace("rms_norm.py::", "model.py::")
HOST = """
#include <vector>
#include <cuda_runtime.h>

int main() {
    std::vector<float> x(128);
    float* p;
    cudaMalloc(&p, x.size() * sizeof(float));
    no_such_kernel<<<1, 32>>>(p);
}
"""
"""Host code that a file may keep beside its launch plan."""
QUICK = ("--device", "cpu", "--generations", "1", "--proposals", "2")


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A kernel of the user's, exported."""
    folder = tmp_path_factory.mktemp("packaged")
    write(folder, TARGET)
    (folder / "rms_norm.cu").write_text(KERNEL + HOST)
    return folder, run(
        folder, "export", "rms_norm.cu", "--package", "out", "--name", "norms", "--device", "cpu", "--json"
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    folder = tmp_path_factory.mktemp("ran")
    write(folder, TARGET)
    assert run(folder, "optimize", "model.py::rms_norm", *QUICK).status == 0
    return folder


def test_a_kernel_that_passes_its_check_is_packaged(packaged: tuple[Path, Ran]) -> None:
    folder, ran = packaged
    assert ran.status == 0, ran.stderr
    assert (folder / "out" / "src" / "norms" / "__init__.py").is_file()


def test_host_code_is_left_out_of_what_is_checked_and_packaged(packaged: tuple[Path, Ran]) -> None:
    folder, _ = packaged
    checked = run(folder, "check", "rms_norm.cu", "--device", "cpu")
    assert checked.status == 0, checked.stdout
    assert not [file for file in (folder / "out").rglob("*.cu*") if "no_such_kernel" in file.read_text()]


def test_the_provenance_says_where_it_was_verified(packaged: tuple[Path, Ran]) -> None:
    folder, _ = packaged
    found = json.loads((folder / "out" / "src" / "norms" / "provenance.json").read_text())
    assert found["verified_on"] == "PTX executor (CPU)"
    assert found["proposed_by"] == "user"
    assert found["task"] == "model.py::rms_norm"


def test_stdout_holds_one_json_object(packaged: tuple[Path, Ran]) -> None:
    _, ran = packaged
    assert ran.json["form"] == "package"
    assert ran.json["name"] == "norms"


def test_a_runs_winner_is_packaged(ran: Path) -> None:
    done = run(ran, "export", "last", "--package", "package")
    assert done.status == 0, done.stderr
    assert "pip install --no-build-isolation package" in done.stdout
    assert "TORCH_LIBRARY(rms_norm_cuda, m)" in (ran / "package" / "csrc" / "operator.cpp").read_text()


def test_a_runs_winner_is_written_as_an_operator(ran: Path) -> None:
    done = run(ran, "export", "last", "--operator", "kept")
    assert done.status == 0, done.stderr
    names = ["__init__.py", f"{RUNTIME_MODULE}.py", "rms_norm.cu", "rms_norm.py"]
    assert sorted(path.name for path in (ran / "kept").iterdir()) == names


def test_a_wrong_kernel_is_not_given_away(tmp_path: Path) -> None:
    write(tmp_path, TARGET)
    (tmp_path / "wrong.cu").write_text(KERNEL.replace("v.x * scale * w.x", "v.x * scale"))
    done = run(tmp_path, "export", "wrong.cu", "--package", "out", "--device", "cpu")
    assert done.status == 2
    assert 'export refused: the kernel\'s verdict is "mismatch"' in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("last",), "next: kernel-lsp export last --operator DIR: "),
        (("saxpy.cu",), "\n       kernel-lsp export saxpy.cu --package DIR: "),
        (("last", "--package", "a", "--operator", "b"), "give one form at a time"),
        (("no-such-run", "--package", "a"), "there are no runs here"),
        (("missing.cu", "--package", "a"), "No such file"),
        (("last", "--package", "a", "--task", "model.py::f"), "a run has its task"),
    ],
)
def test_bad_input_is_said_in_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = run_here(tmp_path, "export", *options)
    assert done.status == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_its_operator_is_used_at_every_call_and_taken_back(ran: Path) -> None:
    before = "from model import rms_norm\n\n\ndef step(x, w):\n    return rms_norm(x, w, 1e-6)\n"
    (ran / "train.py").write_text(before)
    assert run(ran, "export", "last", "--operator", "kernels").status == 0
    shown = run(ran, "use")
    assert "+    return use_rms_norm(rms_norm)(x, w, 1e-6)" in shown.stdout
    headline = run(ran, "report", "last", "--json").json["recommendation"]["headline"]
    assert ("advice: " in shown.stdout) == bool(headline)
    assert headline in shown.stdout
    assert (ran / "train.py").read_text() == before
    assert run(ran, "use", "--apply", "--json").json["n_sites"] == 1
    assert "from kernels.rms_norm import use_rms_norm\n" in (ran / "train.py").read_text()
    assert run(ran, "use", "--revert", "--apply").status == 0
    assert (ran / "train.py").read_text() == before
    assert run(ran, "use", "--revert").status == 1


def test_without_a_call_of_its_target_the_wrapper_is_named(ran: Path) -> None:
    assert run(ran, "export", "last", "--operator", "kernels").status == 0
    (ran / "train.py").unlink(missing_ok=True)
    done = run(ran, "use")
    assert done.status == 1
    assert "calls rms_norm, tests apart" in done.stdout
    assert "use_rms_norm(rms_norm), from kernels/rms_norm.py" in done.stdout


def test_another_run_s_operator_of_the_same_name_is_not_used(ran: Path) -> None:
    (ran / "train.py").write_text("from model import rms_norm\n\n\ndef step(x, w):\n    return rms_norm(x, w, 1e-6)\n")
    assert run(ran, "export", "last", "--operator", "kernels").status == 0
    kernel = ran / "kernels" / "rms_norm.cu"
    kernel.write_text(kernel.read_text() + "// of an older run\n")
    done = run(ran, "use", "--apply")
    assert done.status == 2
    assert "rms_norm.cu is not the kernel of run" in done.stderr
    assert "--operator kernels" in done.stderr
