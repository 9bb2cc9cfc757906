"""Runs every rule over a CUDA file."""

from __future__ import annotations

import re

from kernel_lsp.rules.cuda import access, arithmetic, barriers, host, launches, signature
from kernel_lsp.rules.cuda.model import read_file
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.rules.rule import checks_in

CHECKS = checks_in(barriers, access, arithmetic, launches, signature, host)
RULES = tuple(check.rule for check in CHECKS)
MAX_FINDINGS = 500
"""Of one file: an editor shows no more of use."""


def check(text: str, *, tree: ParsedCuda | None = None) -> tuple[RuleFinding, ...]:
    """What the rules find in a `.cu` or `.cuh` file, in the order of the text. Never raises.

    `tree` is a parse that the caller keeps (`parse(text, previous)` after each edit); it is used if it is of the same
    text. The launch plan's own findings are among the rules (KL235 to KL237): no one else need report them. A line that
    ends in ``// NOLINT`` or ``// NOLINT(KL205)`` is left out, all of it or that code.
    """
    parsed = tree if tree is not None and tree.text == text else parse(text)
    file = read_file(parsed)
    found = {finding: None for check in CHECKS for finding in check.findings(file)}
    kept = [finding for finding in found if not _is_silenced(finding, parsed)]
    return tuple(sorted(kept, key=lambda finding: (finding.range, finding.code))[:MAX_FINDINGS])


_NOLINT = re.compile(rb"//.*\bNOLINT\b(?:\((?P<codes>[^)]*)\))?")


def _is_silenced(finding: RuleFinding, parsed: ParsedCuda) -> bool:
    starts = (*parsed.starts, len(parsed.data))
    line = parsed.data[starts[finding.range.start_line] : starts[finding.range.start_line + 1]]
    match = _NOLINT.search(line) if b"NOLINT" in line else None
    return match is not None and (match["codes"] is None or finding.code.encode() in match["codes"])
