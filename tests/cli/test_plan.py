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
    return main(file, None, write), file.read_text()


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
