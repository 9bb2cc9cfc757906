"""Explain finding codes to models and agents."""

from __future__ import annotations

from kernel_lsp.rules.registry import RULES


def explain(code: str) -> str:
    """Return the rule's page, or the list of codes that have one."""
    rules = {rule.code: rule for rule in RULES}
    rule = rules.get(code.strip().upper())
    if rule is None:
        return f"'{code}' has no page; these have one: {', '.join(sorted(rules))}"
    return f"{rule.code}, {rule.name}: {rule.summary}\n{rule.why}\n\nBetter:\n{rule.good}"


def has_page(code: str) -> bool:
    return any(rule.code == code.strip().upper() for rule in RULES)
