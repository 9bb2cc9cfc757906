"""Every rule, once."""

from __future__ import annotations

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.rule import Language, Rule

RULES: tuple[Rule, ...] = (*pytorch.RULES, *cuda.RULES)
"""In the order of their codes: KL1xx for PyTorch, KL2xx for CUDA."""


def rule(code: str) -> Rule:
    """The rule with this code. Raises KeyError when there is none."""
    return _BY_CODE[code]


def rules_of(language: Language) -> tuple[Rule, ...]:
    """The rules of one language."""
    return tuple(rule for rule in RULES if rule.language == language)


_BY_CODE = {rule.code: rule for rule in RULES}
