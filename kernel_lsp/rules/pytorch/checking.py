"""Runs every rule over a Python file."""

from __future__ import annotations

import re

from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.rules.pytorch import cost, memory, precision, sync, usage
from kernel_lsp.rules.pytorch.names import read_names
from kernel_lsp.rules.pytorch.parsing import ParsedModule, parse
from kernel_lsp.rules.pytorch.scopes import Scope, read_scopes
from kernel_lsp.rules.rule import checks_in

CHECKS = checks_in(sync, cost, memory, precision, usage)
RULES = tuple(check.rule for check in CHECKS)
MAX_FINDINGS = 500
"""Of one file: an editor shows no more of use."""


def check(text: str, *, tree: ParsedModule | None = None) -> tuple[RuleFinding, ...]:
    """What the rules find in a Python file that imports torch, in the order of the text. Never raises.

    `tree` is a parse that the caller keeps; it is used if it is of the same text. In a text that does not parse as a
    whole, the top-level statements that do are looked at. A line that ends in ``# noqa`` or ``# noqa: KL101`` is left
    out, all of it or that code.
    """
    if "torch" not in text:
        return ()
    module = tree if tree is not None and tree.text == text else parse(text)
    names = read_names(module.tree)
    if not names.has_torch:
        return ()
    scopes = read_scopes(module, names)
    found = {finding: None for scope in scopes for finding in _findings(scope)}
    kept = [finding for finding in found if not _is_silenced(finding, module)]
    return tuple(sorted(kept, key=lambda finding: (finding.range, finding.code))[:MAX_FINDINGS])


_NOQA = re.compile(r"#\s*noqa\b(?::\s*(?P<codes>[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*))?", re.IGNORECASE)


def _findings(scope: Scope) -> list[RuleFinding]:
    try:
        return [finding for check in CHECKS for finding in check.findings(scope)]
    except RecursionError:  # an expression nested beyond the stack: nothing is said about this function
        return []


def _is_silenced(finding: RuleFinding, module: ParsedModule) -> bool:
    line = module.lines[finding.range.start_line] if finding.range.start_line < len(module.lines) else ""
    match = _NOQA.search(line) if "noqa" in line.lower() else None
    return match is not None and (match["codes"] is None or finding.code in match["codes"].upper())
