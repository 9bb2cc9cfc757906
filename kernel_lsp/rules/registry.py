"""List every rule of all languages once."""

from __future__ import annotations

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.rule import Language, Rule

RULES: tuple[Rule, ...] = (*pytorch.RULES, *cuda.RULES)
"""All rules in code order: KL1xx for PyTorch, KL2xx for CUDA."""


def rule(code: str) -> Rule:
    """Return the rule with this code. Raises KeyError for an unknown code."""
    return _BY_CODE[code]


def rules_of(language: Language) -> tuple[Rule, ...]:
    """Return the rules of one language."""
    return tuple(rule for rule in RULES if rule.language == language)


_BY_CODE = {rule.code: rule for rule in RULES}


def explain(code: str) -> str:
    """Return the rule's page, or the list of codes that have one."""
    rules = {rule.code: rule for rule in RULES}
    rule = rules.get(code.strip().upper())
    if rule is None:
        return f"'{code}' has no page; these have one: {', '.join(sorted(rules))}"
    return f"{rule.code}, {rule.name}: {rule.summary}\n{rule.why}\n\nBetter:\n{rule.good}"


def has_page(code: str) -> bool:
    return any(rule.code == code.strip().upper() for rule in RULES)
