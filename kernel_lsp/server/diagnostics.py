"""Findings as diagnostics. Each producer is a `source` of its own, and nothing is said twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lsprotocol import types

import kernel_lsp
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.rules.finding import SOURCE, RuleFinding, TextRange
from kernel_lsp.server.analysed import Analysis
from kernel_lsp.server.conversion import to_range
from kernel_lsp.server.documents import Document
from kernel_lsp.server.knowledge import KnownCheck
from kernel_lsp.server.words import verdict_text

SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFORMATION: types.DiagnosticSeverity.Information,
    Severity.HINT: types.DiagnosticSeverity.Hint,
}
COMPILED_AS = "kernel.cu"
"""What a kernel's text is called while it is compiled (`BuildRequest.file_name`)."""
CHECK_SOURCE = "kernel-lsp check"
_DOCUMENTATION = Path(kernel_lsp.__file__).parent.parent


def diagnostics_of(document: Document, analysis: Analysis, check: KnownCheck | None) -> list[types.Diagnostic]:
    """What is known of the text as it is now. `analysis` is in its lines."""
    found = [rule_diagnostic(document, finding) for finding in analysis.findings]
    return [*found, *(_of_check(document, check) if check is not None else ())]


def rule_diagnostic(document: Document, finding: RuleFinding) -> types.Diagnostic:
    """What a rule found."""
    return types.Diagnostic(
        range=to_range(document, finding.range),
        message=finding.message,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        code_description=_documentation(finding.documentation),
        source=SOURCE,
    )


# --- below: rules


def _documentation(page: str) -> types.CodeDescription | None:
    """A link to the rule's page, where the pages are."""
    file, _, anchor = page.partition("#")
    path = _DOCUMENTATION / file
    return types.CodeDescription(href=f"{path.as_uri()}#{anchor}") if path.is_file() else None


# --- below: checks


def _of_check(document: Document, check: KnownCheck) -> Iterator[types.Diagnostic]:
    for finding in check.findings:
        diagnostic = _of_finding(document, check, finding)
        if diagnostic is not None:
            yield diagnostic
    outcome = check.verdict.outcome
    if outcome.kind in ("mismatch", "timed_out", "unsupported") or (
        outcome.kind in ("crashed", "rejected") and not getattr(outcome, "findings", ())
    ):
        yield _of_outcome(document, check)


def _of_finding(document: Document, check: KnownCheck, finding: Finding) -> types.Diagnostic | None:
    is_here = finding.file in (None, COMPILED_AS) or Path(str(finding.file)) == document.path
    message = _message(finding)
    line = document.line_now(finding.line - 1, check.serial) if is_here and finding.line is not None else 0
    if line is None:
        return None
    if not is_here:
        message = f"{finding.file}:{finding.line}: {message}"
    return types.Diagnostic(
        range=to_range(document, _span(document, line, finding.column if is_here else None)),
        message=message,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        source=finding.source,
    )


def _message(finding: Finding) -> str:
    parts = [finding.message]
    if finding.block is not None and finding.thread is not None:
        parts.append(f"block {finding.block}, thread {finding.thread}")
    if finding.n_occurrences > 1:
        parts.append(f"{finding.n_occurrences} times")
    return parts[0] if len(parts) == 1 else f"{parts[0]} ({', '.join(parts[1:])})"


def _of_outcome(document: Document, check: KnownCheck) -> types.Diagnostic:
    """What a check ended with that is at no line of its own, at the operation's declaration."""
    outcome = check.verdict.outcome
    line = next((i for i, text in enumerate(document.lines) if text.startswith("// op:")), 0)
    is_unknown = outcome.kind == "unsupported"
    return types.Diagnostic(
        range=to_range(document, _span(document, line, None)),
        message=verdict_text(check.verdict),
        severity=types.DiagnosticSeverity.Information if is_unknown else types.DiagnosticSeverity.Error,
        code=outcome.kind.replace("_", "-"),
        source=CHECK_SOURCE,
    )


def _span(document: Document, line: int, column: int | None) -> TextRange:
    """From the column to the end of its word; without one, the line."""
    text = document.line_text(line)
    start = len(text) - len(text.lstrip())
    if column is None or not 0 < column <= len(text):
        return TextRange(line, start, line, max(len(text.rstrip()), start))
    end = column
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return TextRange(line, column - 1, line, end)
