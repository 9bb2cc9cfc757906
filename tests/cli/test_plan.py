"""`kernel-lsp plan`: a drafted launch plan, printed or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.cli.plan import main
from kernel_lsp.plan.parser import parse

KERNEL = "__global__ void fill(float* out, int n) { out[threadIdx.x] = n; }\n"


def drafted(folder: Path, text: str = KERNEL, *, write: bool) -> tuple[int, str]:
    """Return the exit status, and the file after it."""
    file = folder / "fill.cu"
    file.write_text(text)
    return main(file, None, None, write), file.read_text()


def test_a_plan_is_printed_and_the_file_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drafted(tmp_path, write=False) == (0, KERNEL)
    assert parse(capsys.readouterr().out).findings == ()


def test_a_plan_is_written_at_the_top_once(tmp_path: Path) -> None:
    status, text = drafted(tmp_path, write=True)
    assert (status, parse(text).findings, text.endswith(KERNEL)) == (0, (), True)
    assert drafted(tmp_path, text, write=True) == (2, text)


@pytest.mark.parametrize(
    ("python", "task"),
    [
        ("def fill(x):\n    return torch.full_like(x, 3).relu()\n", "task: m.py::fill"),
        ("class Fill(nn.Module):\n    def forward(self, x):\n        return x\n", "task: m.py::Fill"),
        ("def other(x):\n    return torch.relu(x)\n", "task: model.py::symbol"),
        ("def fill(:\n", "task: model.py::symbol"),
    ],
)
def test_the_task_is_the_target_beside_it_of_the_kernels_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], python: str, task: str
) -> None:
    (tmp_path / "m.py").write_text(f"import torch\nfrom torch import nn\n\n\n{python}")
    drafted(tmp_path, KERNEL.replace("fill", "fill_kernel"), write=False)
    assert task in capsys.readouterr().out.splitlines()[1]


def test_a_lock_of_an_editor_is_no_target(tmp_path: Path) -> None:
    """Emacs has a link to nowhere, named like the file, beside each file that has changes."""
    (tmp_path / ".#m.py").symlink_to("user@host.1:2")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    assert drafted(tmp_path, write=False)[0] == 0


TWO = """__global__ void leaky_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? x[i] : 0.1f * x[i];
}
__global__ void row_sum(const float* x, float* out, int rows, int cols) {
    float s = 0.0f;
    for (int c = 0; c < cols; ++c) s += x[blockIdx.x * cols + c];
    if (threadIdx.x == 0) out[blockIdx.x] = s;
}
void run(const float* x, float* y, int n) { leaky_kernel<<<(n + 255) / 256, 256>>>(x, y, n); }
void sums(const float* x, float* y, int rows, int cols) { row_sum<<<rows, 32>>>(x, y, rows, cols); }
"""
MODEL = """import torch

# kernel-lsp: x=f32[64, 1024]
def leaky(x):
    return torch.where(x > 0, x, 0.1 * x)

# kernel-lsp: x=f32[B, T, D], B=4, T=16, D=512
def row_sum(x):
    return x.sum(-1)
"""


@pytest.mark.parametrize(
    ("task", "kernel", "lines"),
    [
        (
            "model.py::leaky",
            None,
            (
                "// op: leaky_kernel(x: f32[B, D]) -> (y: f32[B, D])",
                "// launch: leaky_kernel<<<ceil_div(B * D, 256), 256>>>(x, y, B * D)",
            ),
        ),
        (
            None,
            "row_sum",
            (
                "// task: model.py::row_sum",
                "// op: row_sum(x: f32[B, T, D]) -> (out: f32[B, T])",
                "// launch: row_sum<<<B * T, 32>>>(x, out, B * T, D)",
            ),
        ),
        (None, "leaky_kernel", ("// task: model.py::leaky",)),
    ],
)
def test_a_plan_is_for_the_named_kernel_with_the_dims_of_its_task(
    tmp_path: Path, task: str | None, kernel: str | None, lines: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    file = tmp_path / "two.cu"
    file.write_text(TWO)
    assert main(file, task, kernel, False) == 0
    printed = capsys.readouterr().out
    assert parse(printed).findings == ()
    assert all(line in printed.splitlines() for line in lines), printed


def test_a_kernel_that_the_file_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.cu"
    file.write_text(TWO)
    assert main(file, None, "relu", False) == 2
    assert "no kernel 'relu'" in (printed := capsys.readouterr().err)
    assert "leaky_kernel, row_sum" in printed
