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
