"""Every finding that a producer can make is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernel_lsp
from kernel_lsp.core.verdict import CheckOutcome
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.rules.registry import RULES
from kernel_lsp.server.features.explanations import explanation, is_explained

PACKAGE = Path(kernel_lsp.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "ptx-executor.md"
CODES_IN_TEXT = re.compile(
    r'(?:\bcode=|_error\(|_warning\(|_ARITHMETIC, |_PRODUCT, |\.add\(|Construct\(\s*)"([a-z0-9-]+)"'
)


def executor_codes() -> list[str]:
    section = DOCUMENT.read_text().split("## Findings")[1].split("##")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall(r"`([a-z-]+)`", row)]


def written_codes() -> list[str]:
    files = [file for room in ("toolchain", "verify", "ptx") for file in (PACKAGE / room).rglob("*.py")]
    return sorted({code for file in files for code in CODES_IN_TEXT.findall(file.read_text())})


def outcome_codes() -> list[str]:
    union = CheckOutcome.__origin__  # type: ignore[attr-defined]
    kinds = [noun.model_fields["kind"].default for noun in union.__args__]
    return [kind.replace("_", "-") for kind in kinds if kind != "correct"]


@pytest.mark.parametrize("code", [*executor_codes(), *written_codes(), *outcome_codes()])
def test_a_finding_s_code_is_explained(code: str) -> None:
    assert is_explained(code)
    assert explanation(code).startswith(f"{code}: ")


@pytest.mark.parametrize("code", [code.value for code in PlanCode])
def test_a_plan_s_code_says_what_to_do(code: str) -> None:
    assert PlanCode(code).next_step in explanation(code)


@pytest.mark.parametrize("code", ["nvrtc-20", "nvrtc-177-D", "compile-error", "compile-warning", "assemble-error"])
def test_a_compiler_s_code_is_explained(code: str) -> None:
    assert is_explained(code)


def test_a_warning_that_can_be_silenced_says_how() -> None:
    assert "nv_diag_suppress 177" in explanation("nvrtc-177-D")
    assert "nv_diag_suppress" not in explanation("nvrtc-20")


def test_a_rule_is_explained_with_an_example() -> None:
    assert all(rule.bad in explanation(rule.code) for rule in RULES)


def test_an_unknown_code_is_not() -> None:
    assert not is_explained("KL999")
    assert explanation("KL999") == "There is no rule KL999."
