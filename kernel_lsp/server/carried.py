"""An analysis of an earlier text, carried along with the edits since."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.analysed import Analysis, Kernel, Target
from kernel_lsp.server.documents import Document


def carried(document: Document, analysis: Analysis, serial: int) -> Analysis:
    """The analysis in the lines of the text as it is now. What the edits touched is left out, and so is all that one
    could only edit with: fixes, calls, imports."""
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


def range_now(document: Document, found: TextRange, serial: int) -> TextRange | None:
    """A range of an earlier text in the text as it is now; None when its lines were edited."""
    if serial == document.serial:
        return found
    start, end = document.line_now(found.start_line, serial), document.line_now(found.end_line, serial)
    if start is None or end is None or end - start != found.end_line - found.start_line:
        return None
    return TextRange(start, found.start_column, end, found.end_column)


# --- below


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
        pragma="",
    )


def _kernel(document: Document, kernel: Kernel, serial: int) -> Kernel | None:
    line = document.line_now(kernel.line, serial)
    if line is None:
        return None
    return replace(kernel, line=line, end_line=_end(document, kernel.end_line, serial, line))


def _end(document: Document, line: int, serial: int, otherwise: int) -> int:
    now = document.line_now(line, serial)
    return otherwise if now is None else now
