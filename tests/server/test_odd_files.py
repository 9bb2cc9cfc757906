"""Python files as strangers have them: pragmas with mistakes, tabs, CRLF, a byte order mark, names beyond ASCII."""

from __future__ import annotations

import pytest

from kernel_lsp.server.analysis.analysis_worker import analyse
from kernel_lsp.server.features.explanations import is_explained

FUNCTION = "import torch\n\n\n{}def act(x: torch.Tensor):\n    return torch.relu(x)\n"
TABBED = "import torch\n\nclass M(torch.nn.Module):\n\tdef forward(self, x):\n\t\treturn torch.relu(x) * 2\n"


@pytest.mark.parametrize(
    ("pragma", "message"),
    [
        ("x=q32[4, 4]", "no dtype 'q32' for 'x': did you mean i32?"),
        ("y=f32[4, 4]", "'y' is no parameter of act: there are x"),
        ("x=f32[4, ", "'x=f32[4,' is neither a tensor such as f32[8, 16] nor a literal: unexpected character '['"),
        ("x=f32[8, -4]", "the dim '-4' of 'x' is -4, and no size is negative"),
    ],
)
def test_a_pragma_that_cannot_be_read_is_a_warning_at_its_line(pragma: str, message: str) -> None:
    (found,) = analyse("python", "/model.py", FUNCTION.format(f"# kernel-lsp: {pragma}\n")).findings
    assert (found.code, found.message, found.range.start_line) == ("pragma", message, 3)
    assert is_explained(found.code)


def test_a_pragma_that_is_only_missing_is_no_warning() -> None:
    assert not analyse("python", "/model.py", FUNCTION.format("")).findings


@pytest.mark.parametrize("text", [TABBED, TABBED.replace("\n", "\r\n"), f"\ufeff{TABBED}"])
def test_tabs_line_ends_and_a_byte_order_mark_leave_the_target(text: str) -> None:
    (target,) = analyse("python", "/ordnér/mödel ü.py", text).targets
    assert (target.symbol, target.line, target.end_line) == ("M", 2, 4)
    assert [line for line, _ in target.pragmas] == [3]
