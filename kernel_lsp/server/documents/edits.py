"""Present results as edits that the user reviews first, by document or by lines; never apply one to a document that has
changed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types

from kernel_lsp.engine.messages import ExtractedLines, ResultFile, RunSummary
from kernel_lsp.rules.finding import QuickFix, TextEdit, TextRange, apply_fix
from kernel_lsp.server.documents.documents import Change, Document, Documents
from kernel_lsp.server.protocol.handshake import ClientFeatures
from kernel_lsp.server.protocol.positions import split_lines
from kernel_lsp.source.call_sites import USE_PREFIX, import_statement


def to_range(document: Document, found: TextRange) -> types.Range:
    """Convert to the client's units."""
    start_line, start, end_line, end = document.client_range(found)
    return types.Range(types.Position(start_line, start), types.Position(end_line, end))


def to_edit(document: Document, found: TextRange, new_text: str) -> types.TextEdit:
    return types.TextEdit(to_range(document, found), new_text)


def line_range(document: Document, line: int) -> types.Range:
    """Return the range of a line without its end."""
    return to_range(document, TextRange(line, 0, line, len(document.line_text(line))))


def change_of(event: types.TextDocumentContentChangeEvent) -> Change:
    """Convert a client's change."""
    if not isinstance(event, types.TextDocumentContentChangePartial):
        return Change(event.text)
    start, end = event.range.start, event.range.end
    return Change(event.text, (start.line, start.character), (end.line, end.character))


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


ANNOTATION = "kernel-lsp"
RESULTS_FOLDER = ("results",)


@dataclass(frozen=True)
class Proposal:
    """A proposed workspace edit. `edit` is None when no file needs to, or may, be edited; `reason` says why."""

    edit: types.WorkspaceEdit | None
    reason: str = ""
    is_nothing_new: bool = False


def propose(
    files: Sequence[ResultFile],
    label: str,
    documents: Documents,
    features: ClientFeatures,
    changed: DocumentEdits | None = None,
    description: str = "",
) -> Proposal:
    """Build the edit that writes the result files and applies `changed` to the user's document.

    A client that supports change annotations gets `label` and `description` and asks for confirmation. For others the
    edit is offered only if all files are new and `changed` is empty: existing text is never changed unseen.
    """
    states = [_state(file, documents) for file in files]
    if changed is not None and not features.confirms_edits:
        changed = None
    are_there = all(state.text == file.text for state, file in zip(states, files, strict=True))
    if are_there and changed is None:
        return Proposal(None, "the files are there already, as they are", is_nothing_new=True)
    moved_on = next((state.path for state in states if state.is_unsaved), None)
    if moved_on is not None:
        return Proposal(None, f"{moved_on.name} has unsaved changes in the editor")
    if not features.creates_files:
        return Proposal(None, "this editor does not let a server create files")
    is_new = all(state.text is None for state in states)
    if not is_new and not features.confirms_edits:
        return Proposal(None, "the files are there already, and this editor cannot show an edit before it is made")
    annotation = ANNOTATION if features.confirms_edits else None
    changes = [change for state, file in zip(states, files, strict=True) for change in state.become(file, annotation)]
    if are_there:
        changes = []
    if changed is not None:
        changes.append(_document_edit(changed, annotation))
    confirmed = types.ChangeAnnotation(label=label, needs_confirmation=True, description=description or None)
    annotations = {ANNOTATION: confirmed} if annotation else None
    return Proposal(types.WorkspaceEdit(document_changes=changes, change_annotations=annotations))


def write_aside(files: Sequence[ResultFile], folder: Path) -> list[Path]:
    """Write the files to a folder of ours for viewing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in files:
        path = folder / file.path.name
        path.write_text(file.text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def document_edit(changed: DocumentEdits, *, versioned: bool) -> types.WorkspaceEdit:
    """Return a versioned edit where the client supports it, so that it rejects an edit of a changed text."""
    edit = _document_edit(changed, None)
    if versioned:
        return types.WorkspaceEdit(document_changes=[edit])
    plain = [each for each in edit.edits if isinstance(each, types.TextEdit)]
    return types.WorkspaceEdit(changes={changed.document.uri: plain})


def _document_edit(changed: DocumentEdits, annotation: str | None) -> types.TextDocumentEdit:
    document = changed.document
    identifier = types.OptionalVersionedTextDocumentIdentifier(uri=document.uri, version=document.version)
    plain = [to_edit(document, edit.range, edit.new_text) for edit in changed.edits]
    if annotation is None:
        return types.TextDocumentEdit(identifier, plain)
    return types.TextDocumentEdit(
        identifier,
        [types.AnnotatedTextEdit(annotation_id=annotation, range=e.range, new_text=e.new_text) for e in plain],
    )


@dataclass(frozen=True)
class _State:
    """A file's current state: `text` is None when it does not exist, `version` when it is not open."""

    path: Path
    uri: str
    text: str | None
    version: int | None
    is_unsaved: bool

    def become(
        self, file: ResultFile, annotation: str | None
    ) -> list[types.CreateFile | types.TextDocumentEdit | types.RenameFile | types.DeleteFile]:
        """Return the changes that turn the current file into the new one."""
        identifier = types.OptionalVersionedTextDocumentIdentifier(uri=self.uri, version=self.version)
        edit: types.TextEdit | types.AnnotatedTextEdit = types.TextEdit(self._whole(), file.text)
        if annotation is not None:
            edit = types.AnnotatedTextEdit(annotation_id=annotation, range=self._whole(), new_text=file.text)
        changed = types.TextDocumentEdit(identifier, [edit])
        if self.text is not None:
            return [changed]
        options = types.CreateFileOptions(overwrite=False, ignore_if_exists=False)
        return [types.CreateFile(uri=self.uri, options=options, annotation_id=annotation), changed]

    def _whole(self) -> types.Range:
        """Return the range of the whole text, up to a line past its end, which clients clamp."""
        n_lines = len(split_lines(self.text)) if self.text is not None else 0
        return types.Range(types.Position(0, 0), types.Position(n_lines, 0))


def _state(file: ResultFile, documents: Documents) -> _State:
    on_disk = text_on_disk(file.path)
    document = documents.at(file.path)
    if document is None:
        return _State(file.path, file.path.as_uri(), on_disk, None, is_unsaved=False)
    is_unsaved = document.text != (on_disk or "")
    return _State(file.path, document.uri, on_disk, document.version, is_unsaved=is_unsaved)


def text_on_disk(path: Path) -> str | None:
    """Return the file's text; None when it does not exist or is not text."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None
