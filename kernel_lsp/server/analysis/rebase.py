"""Rebase a stale analysis onto the current document."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.rules.finding import TextRange, shifted_finding, shifted_range
from kernel_lsp.server.analysis.analysis_types import Analysis, Kernel, Target
from kernel_lsp.server.documents.documents import Document


def carried(document: Document, analysis: Analysis, serial: int) -> Analysis:
    """Return the analysis with current line numbers. Omits what the edits touched, and everything that is only useful
    for editing: fixes, calls, imports."""
    if serial == document.serial:
        return analysis
    findings = ((finding, range_now(document, finding.range, serial)) for finding in analysis.findings)
    targets = (_target(document, target, serial) for target in analysis.targets)
    kernels = (_kernel(document, kernel, serial) for kernel in analysis.kernels)
    return replace(
        analysis,
        findings=tuple(replace(finding, range=now, fixes=()) for finding, now in findings if now is not None),
        targets=tuple(target for target in targets if target is not None),
        kernels=tuple(kernel for kernel in kernels if kernel is not None),
        places=(),
        uses=(),
    )


def below(analysis: Analysis, n_lines: int) -> Analysis:
    """Return the analysis of the lines below the first `n_lines`, renumbered from 0."""
    moved = replace(
        analysis,
        findings=tuple(shifted_finding(f, -n_lines) for f in analysis.findings if f.range.start_line >= n_lines),
        targets=tuple(_lifted(target, n_lines) for target in analysis.targets if target.line >= n_lines),
        import_line=max(analysis.import_line - n_lines, 0),
    )
    places = [place for place in analysis.places if place.range.start_line >= n_lines]
    uses = [use for use in analysis.uses if use.range.start_line >= n_lines and use.import_range.start_line >= n_lines]
    return replace(
        moved,
        places=tuple(
            replace(p, range=shifted_range(p.range, -n_lines), callee=shifted_range(p.callee, -n_lines)) for p in places
        ),
        uses=tuple(
            replace(u, range=shifted_range(u.range, -n_lines), import_range=shifted_range(u.import_range, -n_lines))
            for u in uses
        ),
    )


def range_now(document: Document, found: TextRange, serial: int) -> TextRange | None:
    """Map a range of an earlier text to the current one; None when its lines were edited."""
    if serial == document.serial:
        return found
    start, end = document.line_now(found.start_line, serial), document.line_now(found.end_line, serial)
    if start is None or end is None or end - start != found.end_line - found.start_line:
        return None
    return TextRange(start, found.start_column, end, found.end_column)


def _target(document: Document, target: Target, serial: int) -> Target | None:
    line = document.line_now(target.line, serial)
    if line is None:
        return None
    forward = document.line_now(target.forward_line, serial)
    return replace(
        target,
        line=line,
        end_line=_end(document, target.end_line, serial, line + target.end_line - target.line),
        forward_line=line if forward is None else forward,
        pragmas=(),
    )


def _lifted(target: Target, n_lines: int) -> Target:
    return replace(
        target,
        line=target.line - n_lines,
        end_line=target.end_line - n_lines,
        forward_line=target.forward_line - n_lines,
        pragmas=tuple((line - n_lines, text) for line, text in target.pragmas),
    )


def _kernel(document: Document, kernel: Kernel, serial: int) -> Kernel | None:
    line = document.line_now(kernel.line, serial)
    if line is None:
        return None
    return replace(kernel, line=line, end_line=_end(document, kernel.end_line, serial, line))


def _end(document: Document, line: int, serial: int, otherwise: int) -> int:
    now = document.line_now(line, serial)
    return otherwise if now is None else now
