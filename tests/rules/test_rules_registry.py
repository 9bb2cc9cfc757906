"""Each rule against its own examples, and the pages against the declarations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.finding import RuleFinding, TextRange, apply_fix, line_starts
from kernel_lsp.rules.registry import RULES, TITLES, render, rule, rules_of
from kernel_lsp.rules.rule import Language, Rule
from kernel_lsp.source.cuda import kernel_signatures

ROOT = Path(__file__).parent.parent.parent
CHECKS = {"pytorch": pytorch.check, "cuda": cuda.check}
LOWEST_COUNT = {"pytorch": 15, "cuda": 20}
FIRST_CODE = {"pytorch": "KL1", "cuda": "KL2"}

ALL_RULES = pytest.mark.parametrize("tested", RULES, ids=lambda rule: rule.code)


@ALL_RULES
def test_a_rule_finds_its_bad_example(tested: Rule) -> None:
    assert tested.code in codes(tested, tested.bad)


@ALL_RULES
def test_a_rule_is_silent_on_its_good_example_and_so_are_the_others(tested: Rule) -> None:
    assert codes(tested, tested.good) == []


@ALL_RULES
def test_a_finding_carries_what_its_rule_declares(tested: Rule) -> None:
    found = next(finding for finding in findings(tested, tested.bad) if finding.code == tested.code)
    assert (found.name, found.severity, found.documentation) == (tested.name, tested.severity, tested.documentation)


@ALL_RULES
def test_a_finding_lies_within_the_text(tested: Rule) -> None:
    lines = tested.bad.split("\n")
    for finding in findings(tested, tested.bad):
        for place in (finding.range, *(edit.range for fix in finding.fixes for edit in fix.edits)):
            check_range(place, lines)


@ALL_RULES
def test_a_fix_removes_what_it_fixes_and_brings_nothing_worse(tested: Rule) -> None:
    before = [finding.code for finding in findings(tested, tested.bad)]
    for finding in findings(tested, tested.bad):
        for fix in finding.fixes:
            after = codes(tested, apply_fix(tested.bad, fix))
            assert after.count(finding.code) < before.count(finding.code) or not fix.is_safe
            assert set(after) <= {*before, "KL110"}


@pytest.mark.parametrize("tested", rules_of("pytorch"), ids=lambda rule: rule.code)
def test_examples_and_fixed_examples_of_pytorch_rules_are_python(tested: Rule) -> None:
    for text in (tested.bad, tested.good, *fixed(tested)):
        ast.parse(text)


@pytest.mark.parametrize("tested", rules_of("cuda"), ids=lambda rule: rule.code)
def test_examples_and_fixed_examples_of_cuda_rules_parse(tested: Rule) -> None:
    for text in (tested.bad, tested.good, *fixed(tested)):
        assert not cuda.parse(text).tree.root_node.has_error
        kernel_signatures(text)


@pytest.mark.parametrize("language", LOWEST_COUNT)
def test_there_are_as_many_rules_as_promised(language: Language) -> None:
    assert len(rules_of(language)) >= LOWEST_COUNT[language]


@ALL_RULES
def test_a_rule_is_declared_in_full(tested: Rule) -> None:
    assert tested.code.startswith(FIRST_CODE[tested.language])
    assert len(tested.code) == 5
    assert tested.name == tested.name.lower().replace(" ", "-")
    assert tested.summary
    assert not tested.summary.endswith(".")
    assert tested.why.endswith(".")


def test_codes_are_declared_once_and_names_once_per_language() -> None:
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({(rule.language, rule.name) for rule in RULES}) == len(RULES)


def test_a_rule_is_found_by_its_code() -> None:
    assert rule("KL101").name == "host-sync"


@pytest.mark.parametrize("language", TITLES)
def test_the_page_is_what_the_declarations_print(language: Language) -> None:
    page = (ROOT / "docs" / "rules" / f"{language}.md").read_text(encoding="utf-8")
    assert page == render(language), "run: python scripts/write_rule_pages.py"


@ALL_RULES
def test_the_documentation_link_leads_to_a_heading(tested: Rule) -> None:
    page, anchor = tested.documentation.split("#")
    headings = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert f"## {anchor.upper()}" in headings


# --- below: what the tests share


def findings(tested: Rule, text: str) -> tuple[RuleFinding, ...]:
    return CHECKS[tested.language](text)


def codes(tested: Rule, text: str) -> list[str]:
    return [finding.code for finding in findings(tested, text)]


def fixed(tested: Rule) -> list[str]:
    return [apply_fix(tested.bad, fix) for finding in findings(tested, tested.bad) for fix in finding.fixes]


def check_range(place: TextRange, lines: list[str]) -> None:
    assert 0 <= place.start_line <= place.end_line < len(lines)
    assert 0 <= place.start_column <= len(lines[place.start_line])
    assert 0 <= place.end_column <= len(lines[place.end_line])
    assert (place.start_line, place.start_column) <= (place.end_line, place.end_column)


@pytest.mark.parametrize(
    ("text", "starts"), [("", [0]), ("a\nb", [0, 2]), ("a\r\nb\rc\n", [0, 3, 5, 7]), ("\r\r\n", [0, 1, 3])]
)
def test_lines_end_as_the_protocol_says(text: str, starts: list[int]) -> None:
    assert line_starts(text) == starts
