"""Cells as Python: magics, and what a file of definitions leaves out."""

from __future__ import annotations

import pytest

from kernel_lsp.source.notebook import definitions_of, without_magics


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if x:\n    !ls\n", "if x:\n    pass\n"),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("%%bash\nls\nrm x", "\n\n"),
        ("x = 7 % 2\ny = a @ b", "x = 7 % 2\ny = a @ b"),
    ],
)
def test_what_is_no_python_goes_and_lines_stay(cell: str, python: str) -> None:
    assert without_magics(cell) == python


def test_a_file_of_definitions_does_nothing_that_the_cells_do() -> None:
    first = "import torch\nDIM = 4 * 2\nmodel = train()\nprint(DIM)"
    second = "# kernel-lsp: x=f32[4]\ndef f(x):\n    return x * DIM\n\nf(torch.ones(4))"
    lines = definitions_of([first, second], "/folder").split("\n")
    assert lines[0] == "import sys; sys.path.insert(0, '/folder')"
    assert lines[1:5] == ["import torch", "DIM = 4 * 2", "", ""]
    assert lines[5:] == ["# kernel-lsp: x=f32[4]", "def f(x):", "    return x * DIM", "", "", ""]


def test_a_cell_that_does_not_parse_is_left_out() -> None:
    assert definitions_of(["def f(:", "x = 1"], "/").split("\n")[1:] == ["", "x = 1", ""]


def test_values_that_are_called_or_looked_up_are_left_out() -> None:
    text = definitions_of(["a = f()\nb = torch.float16\nc = d[0]\ne, g = 1, 2\nh = k = -1.5"], "/")
    assert text.split("\n")[1:6] == ["", "b = torch.float16", "", "", "h = k = -1.5"]
