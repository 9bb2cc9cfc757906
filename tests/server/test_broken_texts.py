"""A text that is being typed does not parse: what else is in it keeps its lenses and hovers."""

from __future__ import annotations

import pytest

from kernel_lsp.server.analysis.analysis_types import Analysis
from kernel_lsp.server.analysis.analysis_worker import analyse

from .samples import SCALE, SCALE_LINE


def of(text: str) -> Analysis:
    return analyse("python", "/w/model.py", text)


@pytest.mark.parametrize(
    "broken",
    ["def other(x:\n    return x\n", "y = (\n", "class Half(nn.Module\n    pass\n", "def f(x):\n", "1 +\n"],
)
def test_targets_beside_a_fault_stay(broken: str) -> None:
    assert of(f"{SCALE}\n\n{broken}").targets == of(SCALE).targets


def test_targets_below_a_fault_are_where_they_are() -> None:
    faulty = of(f"def other(x:\n    return x\n\n\n{SCALE}")
    assert (faulty.targets[0].symbol, faulty.targets[0].line) == ("scale", SCALE_LINE + 4)


def test_a_byte_order_mark_hides_no_target() -> None:
    assert [t.symbol for t in of(f"\ufeff{SCALE}").targets] == [t.symbol for t in of(SCALE).targets]


@pytest.mark.parametrize(
    ("taken_apart", "shape"),
    [
        ("b, n, d = x.shape", "f32[8, 512, 1024]"),
        ("n, c, h, w = x.size()", "f32[8, 64, 56, 56]"),
        ("", "f32[1024, 4096]"),
    ],
)
def test_shapes_to_add_have_as_many_dims_as_the_code_takes_apart(taken_apart: str, shape: str) -> None:
    text = f"import torch\n\n\ndef f(x: torch.Tensor):\n    {taken_apart}\n    return torch.relu(x)\n"
    assert of(text).targets[0].pragmas == ((3, f"# kernel-lsp: x={shape}"),)
