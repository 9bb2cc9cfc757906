"""Edits of a document by lines: pragmas above a target, and a call that replaces optimized lines."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.engine.messages import ExtractedLines, RunSummary
from kernel_lsp.rules.finding import QuickFix, TextEdit, TextRange, apply_fix
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.source.operator_use import USE_PREFIX, import_statement


@dataclass(frozen=True)
class DocumentEdits:
    """Non-overlapping edits of one open document in its current version."""

    document: Document
    edits: tuple[TextEdit, ...]

    def diff(self) -> str:
        """Return the edits as a unified diff."""
        name = self.document.path.name if self.document.path is not None else self.document.uri
        after = apply_fix(self.document.text, QuickFix("", self.edits, is_safe=False))
        before_lines, after_lines = self.document.text.splitlines(keepends=True), after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(before_lines, after_lines, f"a/{name}", f"b/{name}"))


def edits_of_lines(document: Document, lines: ExtractedLines, run: RunSummary, serial: int) -> tuple[TextEdit, ...]:
    """Replace the lines by a call of the operator, keep them as a function above (which *Revert* calls again), and
    import the operator. Empty when the lines have changed since `serial`."""
    first = document.line_now(lines.first_line - 1, serial)
    above = document.line_now(lines.function_line - 1, serial)
    if first is None or above is None or document.path is None:
        return ()
    end = first + lines.last_line - lines.first_line
    if [document.line_text(line) for line in range(first, end + 1)] != lines.replaced.split("\n"):
        return ()
    new_line = line_end(document)
    statement = import_statement(document.path, run.out, run.name, lines.import_style).replace("\n", new_line)
    imports = document.line_now(lines.import_line, serial)
    imports = min(lines.import_line, above) if imports is None else min(imports, above)
    call = lines.call.replace(f"{lines.name}(", f"{USE_PREFIX}{run.name}({lines.name})(", 1)
    function = lines.function.replace("\n", new_line)
    return (
        TextEdit(TextRange(imports, 0, imports, 0), statement + new_line),
        TextEdit(TextRange(above, 0, above, 0), f"{function}{new_line * 3}"),
        TextEdit(TextRange(first, 0, end, len(document.line_text(end))), call),
    )


def pragma_edits(document: Document, pragmas: Sequence[tuple[int, str]]) -> tuple[TextEdit, ...]:
    """Insert each text above its line, indented as that line is."""
    edits = []
    for number, text in pragmas:
        line = document.line_text(number)
        indent = line[: len(line) - len(line.lstrip())]
        edits.append(TextEdit(TextRange(number, 0, number, 0), f"{indent}{text}{line_end(document)}"))
    return tuple(edits)


def line_end(document: Document) -> str:
    return "\r\n" if document.lines[0].endswith("\r\n") else "\n"
