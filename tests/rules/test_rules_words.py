"""A rule looks only where its words are, and misses nothing for that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernel_lsp.rules import pytorch
from kernel_lsp.rules.pytorch.program.parsing import nodes_in

ROOT = Path(__file__).parent.parent.parent
WITHOUT_PLACES = (ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.alias)


def codes(text: str) -> list[str]:
    return [finding.code for finding in pytorch.check(text)]


def test_a_function_is_found_under_the_name_that_an_import_gives_it() -> None:
    text = "from torch import Tensor, {}\n\ndef f(x: Tensor) -> Tensor:\n    return x + {}(4)\n"
    assert codes(text.format("zeros", "zeros")) == ["KL120"]
    assert codes(text.format("zeros as z", "z")) == ["KL120"]


def test_a_function_is_found_that_is_spelled_with_other_letters() -> None:
    text = "import torch\n\ndef f(x: torch.Tensor) -> torch.Tensor:\n    return x / x.{}()\n"
    assert codes(text.format("item")) == codes(text.format("\uff49tem")) == ["KL101"]


def test_a_function_inside_one_that_needs_no_rule_is_read() -> None:
    inner = "def inner(x: torch.Tensor) -> torch.Tensor:\n        return x / x.item()\n"
    assert codes(f"import torch\n\ndef outer():\n    {inner}    return inner\n") == ["KL101"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_a_walk_meets_what_the_library_s_own_meets(path: Path) -> None:
    tree = ast.parse(path.read_text())
    expected = [node for node in ast.walk(tree) if not isinstance(node, WITHOUT_PLACES)]
    assert nodes_in(tree) == expected
