"""The registry of lowering rules: one rule for each ATen operator."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.generate.lowering.builder import Rule

RULES: dict[str, Rule] = {}
"""By operator without its overload, e.g. ``aten.add``, or with it where overloads differ, e.g. ``aten.max.dim``."""


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, spelled without ``aten.``."""

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = rule
        return rule

    return register
