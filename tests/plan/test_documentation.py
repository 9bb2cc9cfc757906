"""`docs/kernel-format.md` and `docs/plan-reference.md`: their plans parse, the table has every code and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_lsp.plan.block import DIRECTIVE_KEYS, MAX_DIRECTIVE_CHARACTERS
from kernel_lsp.plan.checking import check
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.launch_line import ATTRIBUTES, RESERVED_NAMES
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.cuda import kernel_signatures

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = "".join((DOCS / page).read_text() for page in ("kernel-format.md", "plan-reference.md"))
PLANS = [
    "\n".join(line.removeprefix(indent) for line in block.split("\n"))
    for indent, block in re.findall(r"^( *)```cpp\n(.*?)```", DOCUMENT, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("text", PLANS)
def test_every_plan_of_the_document_parses(text: str) -> None:
    result = parse(text)
    assert result.findings == ()
    assert result.plan is not None
    if "__global__" in text:
        assert check(result.plan, kernel_signatures(text)) == ()


def test_the_document_has_plans() -> None:
    assert len(PLANS) >= 5


def test_the_table_of_codes_is_complete() -> None:
    table = DOCUMENT.split("## Findings")[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [str(code) for code in PlanCode]


def test_every_code_has_a_next_step() -> None:
    assert all(code.next_step for code in PlanCode)


def test_every_directive_attribute_and_reserved_name_is_documented() -> None:
    for word in (*DIRECTIVE_KEYS, *ATTRIBUTES, *RESERVED_NAMES):
        assert re.search(rf"\b{word}\b", DOCUMENT), word
    assert f"{MAX_DIRECTIVE_CHARACTERS:,}" in DOCUMENT
