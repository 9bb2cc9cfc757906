"""robust-kbench folders through `optimize` and `check`: every configuration is checked, and named where not served."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.commands import run

FOLDERS = Path(__file__).parent.parent / "robust_kbench_style"
QUICK = ("--device", "cpu", "--generations", "1", "--proposals", "1")


def copied(folder: Path, name: str) -> None:
    shutil.copytree(FOLDERS / name, folder / name)


def test_a_generated_kernel_serves_every_configuration_that_differs_in_sizes(tmp_path: Path) -> None:
    copied(tmp_path, "linear_relu")
    assert run(tmp_path, "optimize", "linear_relu", "--backward", *QUICK).status == 0
    kernel = tmp_path / "linear_relu" / "kernels" / "linear_relu.cu"
    assert "affine_w: f32[N, D]" in kernel.read_text()
    ran = run(tmp_path, "check", str(kernel), "--task", "linear_relu", "--device", "cpu", "--json")
    assert ran.status == 0
    assert len(ran.json["configurations"]) == 4
    assert all(configuration["is_served"] for configuration in ran.json["configurations"])
    shapes = [tuple(case["shapes"]["affine_w"]) for case in ran.json["outcome"]["cases"]]
    assert {(24, 40), (36, 64)} <= set(shapes)


def test_a_configuration_with_another_constant_is_checked_and_named(tmp_path: Path) -> None:
    copied(tmp_path, "conv2d")
    ran = run(tmp_path, "optimize", "conv2d", *QUICK)
    assert ran.status == 0
    assert "not covered by this capture" in ran.stderr
    kernel = str(tmp_path / "conv2d" / "kernels" / "conv2d.cu")
    ran = run(tmp_path, "check", kernel, "--task", "conv2d", "--device", "cpu")
    assert ran.status == 0
    assert "2 of 3 configurations of the task served" in ran.stdout
    assert "stride=2" in ran.stdout
