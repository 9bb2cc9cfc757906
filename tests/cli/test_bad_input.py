"""Bad input gets one clear error that names the place and the next step; nothing is written, nothing hangs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import SCALE, run, run_here, write

BAD_FILES = {  # one for each way to the message: `tests/worker/test_capture_errors.py` has the rest
    "syntax error": ("def f(x):\n    return x +\n", "model.py::f", "model.py:2"),
    "missing symbol": (SCALE, "model.py::scales", "scale"),
    "exits on import": (
        "import os\nos._exit(3)\n# kernel-lsp: x=f32[4]\ndef f(x):\n    return x\n",
        "model.py::f",
        "exit code 3",
    ),
    "hangs on import": (
        "import time\ntime.sleep(600)\n# kernel-lsp: x=f32[4]\ndef f(x):\n    return x\n",
        "model.py::f",
        "did not finish",
    ),
    "no shapes": ("import torch\ndef f(x, weight):\n    return x * weight\n", "model.py::f", "# kernel-lsp: x=f32["),
    "data-dependent control flow": (
        "import torch\n# kernel-lsp: x=f32[64]\ndef f(x):\n    if x.sum() > 0:\n        return x\n    return -x\n",
        "model.py::f",
        "model.py:4",
    ),
    "unsupported op": (
        "import torch\n# kernel-lsp: x=f32[8, 8]\ndef f(x):\n    return torch.linalg.qr(x)[0]\n",
        "model.py::f",
        "model.py:4",
    ),
}

PLAIN = """#include <cstdio>
__global__ void f(const float* x, float* y, int n) {
    __shared__ float t[32]; int i = blockIdx.x * 32 + threadIdx.x; t[threadIdx.x] = x[i];
    y[i] = t[31 - threadIdx.x];
}
int main() { f<<<1, 32>>>(nullptr, nullptr, 0); std::printf("done\\n"); return 0; }
"""


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_place_and_next_step(tmp_path: Path, name: str) -> None:
    text, target, says = BAD_FILES[name]
    write(tmp_path, text)
    deadline_s = "10" if name == "hangs on import" else "120"
    ran = run_here(tmp_path, "optimize", target, "--device", "cpu", KERNEL_LSP_CAPTURE_DEADLINE_S=deadline_s)
    assert ran.status == 2, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert "error:" in ran.stderr
    assert says in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in ("cache", "__pycache__")) == ["model.py"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("optimize", "model.py:scale"), "did you mean model.py::scale?"),
        (("optimize", "model.scale"), "did you mean model.py::scale?"),
        (("optimize", "model:scale"), "did you mean model.py::scale?"),
        (("optimize", "model::scale"), "did you mean model.py::scale?"),
        (("optimize", "modle.py::scale"), "did you mean model.py::scale?"),
        (("check", "scale.cu"), "did you mean kernels/scale.cu?"),
        (("profile", "model.py::scale"), "this is a target: name its kernel, kernels/scale.cu"),
        (("profile", "model.py::other"), "this is a target: name its kernel, a .cu file"),
    ],
)
def test_a_missing_file_is_suggested_as_it_would_be_written(
    tmp_path: Path, arguments: tuple[str, str], hint: str
) -> None:
    write(tmp_path, SCALE)
    (tmp_path / ".models").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scale.cu").write_text("", encoding="utf-8")
    ran = run_here(tmp_path, *arguments)
    assert (ran.status, hint in ran.stderr) == (2, True), ran.stderr


def test_a_python_file_without_a_kernel_has_its_static_findings(tmp_path: Path) -> None:
    loss = "import torch\n\ndef loss(x, y):\n    return torch.nn.functional.cross_entropy(x.softmax(1), y)\n"
    write(tmp_path, loss)
    ran = run_here(tmp_path, "check", "model.py")
    assert ran.status == 2, ran.stderr
    assert ran.stdout.startswith("model.py: unsupported\n")
    assert "model.py:4:12: warning:" in ran.stdout
    assert "[kernel-lsp/KL140]" in ran.stdout


def _refused(tmp_path: Path, *arguments: str, **settings: str) -> str:
    ran = run_here(tmp_path, *arguments, **settings)
    assert ran.status == 2, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.py" in _refused(tmp_path, "optimize", "nowhere.py::f")


def test_an_interpreter_without_torch_is_told_what_to_install(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    said = _refused(tmp_path, "optimize", "model.py::scale", "--python", "/usr/bin/python3")
    assert "pip install torch" in said


def test_a_wrong_interpreter_is_named(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    assert "/bin/false" in _refused(tmp_path, "optimize", "model.py::scale", "--python", "/bin/false")


def test_an_unknown_gpu_gets_no_number_but_the_names_known(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    assert "H200" in _refused(tmp_path, "estimate", "model.py::scale", "--gpu", "RTX 9999")


def test_cuda_without_a_gpu_is_refused(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    assert "--device cpu" in _refused(tmp_path, "optimize", "model.py::scale", "--device", "cuda")


def test_no_compiler_says_how_to_get_one(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    nothing = str(tmp_path / "nothing")
    said = _refused(tmp_path, "optimize", "model.py::scale", "--device", "cpu", KERNEL_LSP_CUDA_DIRECTORY=nothing)
    assert "next:" in said


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    (tmp_path / "out").write_text("a file")
    assert "out" in _refused(tmp_path, "optimize", "model.py::scale", "--device", "cpu", "--out", "out")


def test_a_file_of_the_users_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    (tmp_path / "kernels").mkdir()
    mine = write(tmp_path / "kernels", "my own work", "scale.py")
    _refused(tmp_path, "optimize", "model.py::scale", "--device", "cpu")
    assert mine.read_text() == "my own work"


def test_a_kernel_without_a_plan_is_compiled_and_its_findings_are_printed(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "f.cu")
    ran = run(tmp_path, "check", "f.cu")
    assert ran.status == 2, ran.stdout
    assert "build failed" not in ran.stdout
    assert "no launch plan" in ran.stdout
    assert re.search(r"kernel    f: \d+ registers, 128 bytes shared, 0 bytes spilled", ran.stdout)
    assert re.search(r"occupancy \d+% on H200 \(32 threads per block, limited by blocks\)", ran.stdout)
    assert "f.cu:4:12: error:" in ran.stdout
    assert "kernel-lsp/KL207" in ran.stdout
    assert "kernel-lsp plan f.cu --write" in ran.stdout


def test_a_compiler_error_in_a_file_without_a_plan_is_at_its_line(tmp_path: Path) -> None:
    write(tmp_path, PLAIN.replace("y[i] =", "z[i] ="), "f.cu")
    ran = run(tmp_path, "check", "f.cu")
    assert ran.status == 1
    assert 'f.cu:4:5: error: identifier "z" is undefined' in ran.stdout


def test_an_extension_without_a_task_is_not_asked_for_a_plan(tmp_path: Path) -> None:
    write(tmp_path, PLAIN + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n", "f.cu")
    ran = run(tmp_path, "check", "f.cu")
    assert ran.status == 2
    assert "--task model.py::symbol" in ran.stdout
    assert "kernel-lsp/KL207" in ran.stdout
    assert "plan" not in ran.stdout + ran.stderr


def test_an_extension_that_cannot_run_here_keeps_its_static_findings(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    write(tmp_path, PLAIN + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n", "f.cu")
    ran = run(tmp_path, "check", "f.cu", "--task", "model.py::scale", "--device", "cpu")
    assert ran.status == 2
    assert "no GPU here" in ran.stdout
    assert "kernel-lsp/KL207" in ran.stdout


def test_a_kernel_without_a_task_says_what_to_add(tmp_path: Path) -> None:
    plan = "// kernel-lsp: 1\n// op: f(x: f32[N]) -> (y: f32[N])\n// launch: f<<<1, 32>>>(x, y)\n"
    write(tmp_path, plan + "__global__ void f(const float* x, float* y) { y[0] = x[0]; }\n", "f.cu")
    assert "// task:" in _refused(tmp_path, "check", "f.cu")


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    assert "no run" in _refused(tmp_path, "optimize", "--resume", "never")
