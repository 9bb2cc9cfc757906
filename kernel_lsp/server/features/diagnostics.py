"""Convert findings to diagnostics. Each producer has its own `source`; duplicates are removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lsprotocol import types

from kernel_lsp.core.finding import Finding, RelatedPlace, Severity
from kernel_lsp.core.measurement import Measurement
from kernel_lsp.core.recommendation import one_line
from kernel_lsp.rules.finding import SOURCE, RuleFinding, TextRange
from kernel_lsp.server.analysis.analysis_types import Analysis
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import line_range, to_range
from kernel_lsp.server.features.explanations import page_file
from kernel_lsp.server.features.formatting import verdict_text
from kernel_lsp.server.knowledge import Knowledge, KnownCheck

SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFORMATION: types.DiagnosticSeverity.Information,
    Severity.HINT: types.DiagnosticSeverity.Hint,
}
KERNEL_SUFFIX = ".cu"
CHECK_SOURCE = "kernel-lsp check"
ADVICE_SOURCE = "kernel-lsp advice"
GPU_SOURCE = "kernel-lsp GPU"
JUDGE_SOURCE = "kernel-lsp judges"
DOUBT = 0.5
"""Probability of a correct kernel below which a judge doubts it."""
INSTANTIATED = " (detected during:"
"""Marks the list of template instantiations in a compiler message (`kernel_lsp.toolchain.nvrtc.diagnostics`)."""
MAX_RELATED = 20
"""Maximum related locations per diagnostic; an incompatible header can produce hundreds."""


def diagnostics_of(
    document: Document, analysis: Analysis, check: KnownCheck | None, *, shows_related: bool = True
) -> list[types.Diagnostic]:
    """Return all diagnostics of the current text. `analysis` uses its line numbers. For a client without related
    information, the locations are added to the message."""
    found = [rule_diagnostic(document, finding) for finding in analysis.findings]
    return [*found, *check_diagnostics(document, check, shows_related=shows_related)]


def advice_diagnostics(document: Document, analysis: Analysis, knowledge: Knowledge) -> Iterator[types.Diagnostic]:
    """Yield the recommendation against a target's kernel, at the target, until its code changes."""
    for target in analysis.targets:
        run = knowledge.last_result(document.file, target.symbol)
        advice = run.recommendation if run is not None else None
        if run is None or advice is None or not advice.headline or knowledge.is_stale(run, target):
            continue
        yield types.Diagnostic(
            range=to_range(document, _span(document, target.line, None)),
            message=advice.sentence,
            severity=types.DiagnosticSeverity.Information,
            code=f"{advice.action}-first" if advice.action == "measure" else f"{advice.action}-pytorch",
            source=ADVICE_SOURCE,
        )


def check_diagnostics(
    document: Document, check: KnownCheck | None, *, shows_related: bool = True
) -> Iterator[types.Diagnostic]:
    """Yield a check's findings that still have a line in the text."""
    if check is None:
        return
    for group in _grouped(check.findings):
        line = _line_of(document, check, group[0])
        if line is not None:
            yield _of_group(document, check, group, line, shows_related=shows_related)
    outcome = check.verdict.outcome
    if outcome.kind in ("mismatch", "timed_out", "unsupported") or (
        outcome.kind in ("crashed", "rejected") and not getattr(outcome, "findings", ())
    ):
        yield _of_outcome(document, check)
    yield from _of_times(document, check)
    yield from _of_judges(document, check)


def rule_diagnostic(document: Document, finding: RuleFinding) -> types.Diagnostic:
    """Convert a rule's finding, with its related places."""
    related = [
        types.DiagnosticRelatedInformation(types.Location(document.uri, to_range(document, place)), finding.name)
        for place in finding.related[:MAX_RELATED]
    ]
    return types.Diagnostic(
        range=to_range(document, finding.range),
        message=finding.message,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        code_description=_documentation(finding.documentation),
        source=SOURCE,
        related_information=related or None,
    )


def _documentation(page: str) -> types.CodeDescription | None:
    """Return a link to the rule's page; None if there is none or it cannot be located."""
    file, _, anchor = page.partition("#")
    path = page_file(file) if file else None
    return types.CodeDescription(href=f"{path.as_uri()}#{anchor}") if path is not None else None


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group the findings that one header causes on one line of the user; other findings stay single."""
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        in_header = bool(finding.related) and not _is_here(finding.related[0].file)
        key = (finding.source, finding.severity, finding.line) if in_header else number
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _line_of(document: Document, check: KnownCheck, finding: Finding) -> int | None:
    """Return the finding's current line, 0 for one without a line, None if its line was edited."""
    if finding.line is None or not _is_here(finding.file):
        return 0
    return document.line_now(finding.line - 1, check.serial)


def _is_here(file: str | None) -> bool:
    """Return True for the kernel's own file. It is compiled under a bare name (``kernel.cu``); headers have paths."""
    return file is None or ("/" not in file and file.endswith(KERNEL_SUFFIX))


def _of_group(
    document: Document, check: KnownCheck, group: Sequence[Finding], line: int, *, shows_related: bool
) -> types.Diagnostic:
    finding = group[0]
    related = [place for each in group for place in each.related]
    shown = _related(document, check, related) if shows_related else []
    message = _message(finding, has_related=bool(shown))
    if len(group) > 1:
        message += f"; {len(group) - 1} more in headers"
    is_here = _is_here(finding.file)
    return types.Diagnostic(
        range=to_range(document, _span(document, line, finding.column if is_here else None)),
        message=_dated(check, message if is_here else f"{finding.file}:{finding.line}: {message}"),
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        source=finding.source,
        related_information=shown or None,
    )


def _dated(check: KnownCheck, message: str) -> str:
    """Add device and origin to what an earlier run found."""
    return f"{message} ({check.verdict.device}, {check.origin})" if check.origin else message


def _related(
    document: Document, check: KnownCheck, places: Sequence[RelatedPlace]
) -> list[types.DiagnosticRelatedInformation]:
    return [
        types.DiagnosticRelatedInformation(location=location, message=place.message)
        for place in places[:MAX_RELATED]
        if (location := _location(document, check, place)) is not None
    ]


def _location(document: Document, check: KnownCheck, place: RelatedPlace) -> types.Location | None:
    if _is_here(place.file):
        line = document.line_now(place.line - 1, check.serial)
        return types.Location(document.uri, line_range(document, line)) if line is not None else None
    if not Path(place.file).is_absolute():
        return None
    start = types.Position(max(place.line - 1, 0), 0)
    return types.Location(Path(place.file).as_uri(), types.Range(start, start))


def _message(finding: Finding, *, has_related: bool) -> str:
    """Return the message; template instantiations are included only for a client without related information."""
    parts = [finding.message.partition(INSTANTIATED)[0] if has_related else finding.message]
    if finding.block is not None and finding.thread is not None:
        parts.append(f"block {finding.block}, thread {finding.thread}")
    if finding.n_occurrences > 1:
        parts.append(f"{finding.n_occurrences} times")
    return parts[0] if len(parts) == 1 else f"{parts[0]} ({', '.join(parts[1:])})"


def _of_outcome(document: Document, check: KnownCheck) -> types.Diagnostic:
    """Return a check's outcome, if it has no line of its own, at the operation's declaration."""
    outcome = check.verdict.outcome
    line = _operation_line(document)
    is_unknown = outcome.kind == "unsupported"
    return types.Diagnostic(
        range=to_range(document, _span(document, line, None)),
        message=_dated(check, verdict_text(check.verdict)),
        severity=types.DiagnosticSeverity.Information if is_unknown else types.DiagnosticSeverity.Error,
        code=outcome.kind.replace("_", "-"),
        source=CHECK_SOURCE,
    )


def _of_times(document: Document, check: KnownCheck) -> Iterator[types.Diagnostic]:
    """Yield the times measured on a GPU, at the operation's declaration, until the text changes."""
    if check.serial != document.serial:
        return
    for name, comparison in check.verdict.times.items():
        if isinstance(comparison.ours, Measurement):
            yield _information(document, f"{name}: {one_line(comparison)}", "measured-time", GPU_SOURCE)


def _of_judges(document: Document, check: KnownCheck) -> Iterator[types.Diagnostic]:
    """Yield what judges doubted, at the operation's declaration, until the text changes."""
    for judged in check.judged if check.serial == document.serial else ():
        doubts = [f"{judge}: {p:.0%} likely correct" for judge, p in judged.probabilities.items() if p < DOUBT]
        if doubts:
            message = f"judges doubted this kernel: {', '.join(doubts)} ({check.origin})"
            yield _information(document, message, "judged-doubtful", JUDGE_SOURCE)


def _information(document: Document, message: str, code: str, source: str) -> types.Diagnostic:
    line = _operation_line(document)
    severity = types.DiagnosticSeverity.Information
    where = to_range(document, _span(document, line, None))
    return types.Diagnostic(range=where, message=message, severity=severity, code=code, source=source)


def _operation_line(document: Document) -> int:
    return next((i for i, text in enumerate(document.lines) if text.startswith("// op:")), 0)


def _span(document: Document, line: int, column: int | None) -> TextRange:
    """Return the span from the column to the end of its word, or the whole line without a column."""
    text = document.line_text(line)
    start = len(text) - len(text.lstrip())
    if column is None or not 0 < column <= len(text):
        return TextRange(line, start, line, max(len(text.rstrip()), start))
    end = column
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return TextRange(line, column - 1, line, end)
