"""`kernel-lsp profile --device ssh://`: the executor counts, and the report says where the tools would run."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.verify.gpu.harness import FAKE

from .sshd import Sshd
from .test_bad_input import TASK, command, on_path

KERNEL = """// kernel-lsp: 1
// task: task.py::f
// op: f(x: f32[N]) -> (out: f32[N])
// launch: f<<<ceil_div(N, 256), 256>>>(x, out, N)
__global__ void f(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] + 1.0f;
}
"""


def test_the_executor_counts_and_the_tools_are_said_to_run_elsewhere(sshd: Sshd, tmp_path: Path) -> None:
    """It was "needs a GPU", to somebody who had named one."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "f.cu").write_text(KERNEL)
    python = sshd.python(f'exec {sys.executable} {FAKE} "$1"', "profile")
    device = f"ssh://127.0.0.1:{sshd.port}{python}"
    ran = command(tmp_path, "profile", "f.cu", "--device", device, PATH=on_path(sshd, "profile"))
    assert ran.returncode == 0, ran.stderr
    assert "out[i] = x[i] + 1.0f;" in ran.stdout
    assert "ncu: not asked (runs on this machine alone: profile on the one with the GPU)" in ran.stdout
    assert sshd.is_clean()


def test_a_machine_out_of_reach_is_named(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "f.cu").write_text(KERNEL)
    ran = command(tmp_path, "profile", "f.cu", "--device", "ssh://127.0.0.1:1")
    assert ran.returncode == 2
    assert "refuses connections" in ran.stderr
    assert "Traceback" not in ran.stderr
