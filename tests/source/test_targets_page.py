"""The examples in docs/targets.md are what the parser takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_lsp.source.pragma import PragmaLine, parse_pragma

PAGE = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
IN_TABLE = [
    example
    for row in re.findall(r"^\| .* \| (`.*`.*) \|$", PAGE, re.MULTILINE)
    for example in re.findall(r"`([^`]+)`", row)
]
IN_COMMENTS = re.findall(r"# kernel-lsp: (.*)", PAGE)


def test_the_page_has_examples_of_both_kinds() -> None:
    assert len(IN_TABLE) >= 8
    assert len(IN_COMMENTS) >= 2


@pytest.mark.parametrize("text", IN_TABLE + IN_COMMENTS)
def test_an_example_parses(text: str) -> None:
    pragma = parse_pragma([PragmaLine(text, 1)])
    assert pragma.says_inputs or pragma.init is not None
