"""List every rule of all languages once, and render the rules' documentation pages from their declarations."""

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


TITLES: dict[Language, str] = {"pytorch": "Rules for PyTorch", "cuda": "Rules for CUDA"}
SILENCING: dict[Language, str] = {
    "pytorch": "End a line with `# noqa: KL101` to silence a rule on it.",
    "cuda": "End a line with `// NOLINT(KL201)` to silence a rule on it.",
}
INTRODUCTIONS: dict[Language, str] = {
    "pytorch": """
They look only at files that import torch, and speak of synchronization, allocation and launches only in code that runs
at each step of a model: the `forward` of a module with the methods it calls, functions that take and return tensors,
and functions with a `# kernel-lsp:` pragma above them. Nothing is imported or run: a value is a tensor by its
annotation, by a use that only tensors have, or by what is assigned to it. In doubt the rules are silent.
""",
    "cuda": """
They look at `.cu` and `.cuh` files while you type, without a compiler. What the compiler and the executor find comes
from them, under their own names. The findings of the launch plan are here (KL235 to KL237).
""",
}
_FENCES: dict[Language, str] = {"pytorch": "python", "cuda": "cpp"}


def render(language: Language) -> str:
    """Return the Markdown page of one language."""
    rules = rules_of(language)
    parts = [
        f"# {TITLES[language]}",
        "<!-- Written by scripts/write_rule_pages.py from kernel_lsp/rules. Do not edit. -->",
        INTRODUCTIONS[language].strip(),
        f"{SILENCING[language]} A fix that is marked safe leaves the meaning as it is, up to rounding.",
        _table(rules),
        *(_section(rule) for rule in rules),
    ]
    return "\n\n".join(parts) + "\n"


def _table(rules: tuple[Rule, ...]) -> str:
    lines = ["| code | name | severity | what |", "|---|---|---|---|"]
    for rule in rules:
        lines.append(f"| [{rule.code}](#{rule.code.lower()}) | {rule.name} | {rule.severity} | {_cell(rule.summary)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _section(rule: Rule) -> str:
    fence = _FENCES[rule.language]
    return "\n\n".join(
        (
            f"## {rule.code}",
            f"**{rule.name}** ({rule.severity}): {rule.summary}.",
            rule.why,
            f"Found:\n\n```{fence}\n{rule.bad}```",
            f"Not found:\n\n```{fence}\n{rule.good}```",
        )
    )
