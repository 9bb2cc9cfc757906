"""Code actions: quick fixes of findings, and the commands for a target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp.rules.finding import QuickFix, RuleFinding, TextEdit, TextRange
from kernel_lsp.server.analysis.analysis_client import Known
from kernel_lsp.server.analysis.analysis_types import Place, Target, Use
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import DocumentEdits, document_edit, line_end, pragma_edits
from kernel_lsp.server.features.diagnostics import check_diagnostics, rule_diagnostic
from kernel_lsp.server.features.explanations import is_explained
from kernel_lsp.server.knowledge import Knowledge
from kernel_lsp.server.protocol.handshake import REWRITE_KIND, ClientFeatures
from kernel_lsp.source.call_sites import USE_PREFIX, import_statement, is_offered

QUICK_FIX = types.CodeActionKind.QuickFix.value


class CodeActions:
    """The actions for lines ``[first, last]`` of one document."""

    def __init__(
        self,
        document: Document,
        known: Known,
        knowledge: Knowledge,
        features: ClientFeatures,
        *,
        has_gpu: bool = False,
        runs_code: bool = False,
    ) -> None:
        self._has_gpu, self._runs_code = has_gpu, runs_code
        self._document, self._knowledge, self._features = document, knowledge, features
        self._analysis, self._is_current = known.now(document), known.is_current(document)

    def between(self, first: int, last: int, only: Sequence[str], *, selects: bool = False) -> list[types.CodeAction]:
        """Return the actions of the kinds in `only`, all when it is empty. Edits apply to the current text, so none are
        offered while the analysis is stale. `selects` is true when text is selected, not just a position."""
        found = [*self._fixes(first, last), *self._refactorings(first, last)]
        if only and not any(_is_kind(REWRITE_KIND, kind) for kind in only):
            target = self._analysis.target_at(first)
            found += [] if target is None else self._shapes(target, QUICK_FIX)
        if selects:
            found += self._selected_actions(first, last)
        return [action for action in found if not only or any(_is_kind(action.kind, kind) for kind in only)]

    def _fixes(self, first: int, last: int) -> Iterator[types.CodeAction]:
        if not self._is_current:
            return
        for finding in self._analysis.findings:
            if finding.range.start_line <= last and finding.range.end_line >= first:
                for fix in finding.fixes:
                    yield self._fix(finding, fix)
                yield self._explain(finding.code, finding.name)
        checked = check_diagnostics(self._document, self._knowledge.check(self._document.uri))
        codes = [found.code for found in checked if found.range.start.line <= last and found.range.end.line >= first]
        yield from (self._explain(str(code)) for code in dict.fromkeys(codes) if is_explained(str(code)))

    def _explain(self, code: str, name: str = "") -> types.CodeAction:
        title = f"Explain this finding: {code} {name}".rstrip()
        return self._command(title, QUICK_FIX, "explain", {"code": code})

    def _fix(self, finding: RuleFinding, fix: QuickFix) -> types.CodeAction:
        return types.CodeAction(
            title=fix.title,
            kind=QUICK_FIX,
            diagnostics=[rule_diagnostic(self._document, finding)],
            is_preferred=fix.is_safe or None,
            edit=self._edit(fix.edits),
        )

    def _refactorings(self, first: int, last: int) -> Iterator[types.CodeAction]:
        if self._document.language == "cuda":
            yield from self._kernel_actions(first)
            return
        target = self._analysis.target_at(first)
        if target is not None:
            yield from self._target_actions(target)
        if self._is_current:
            for place in self._analysis.places:
                if place.range.start_line <= last and place.range.end_line >= first:
                    yield from self._use_actions(place)
            for use in self._analysis.uses:
                if use.range.start_line <= last and use.range.end_line >= first:
                    yield self._revert_action(use)
                    name = use.name.removeprefix(USE_PREFIX)
                    about = {"uri": self._document.uri, "symbol": name}
                    yield self._command(
                        f"Revert to PyTorch in all files: {name}", REWRITE_KIND, "revertEverywhere", about
                    )

    def _kernel_actions(self, line: int) -> Iterator[types.CodeAction]:
        if self._analysis.has_plan and self._document.path is not None:
            about = {"uri": self._document.uri}
            yield self._command("Check now", REWRITE_KIND, "check", about)
            if self._has_gpu:
                yield self._command("Measure now", REWRITE_KIND, "measure", about)
            yield self._command("Profile", REWRITE_KIND, "profile", about)
        elif self._analysis.kernels and self._document.path is not None:
            about = {"uri": self._document.uri}
            yield self._command("Add a launch plan", QUICK_FIX, "addPlan", {**about, "line": line})
            yield self._command("Check now", REWRITE_KIND, "check", about)
        file, separator, symbol = self._analysis.task.partition("::")
        if separator and self._document.path is not None:
            path = Path(os.path.abspath(self._document.path.parent / file))
            about = {"uri": path.as_uri(), "symbol": symbol, "kernel": self._document.uri}
            yield self._command(f"Optimize this kernel: {symbol}", REWRITE_KIND, "optimize", about)

    def _target_actions(self, target: Target) -> Iterator[types.CodeAction]:
        about = {"uri": self._document.uri, "symbol": target.symbol}
        if (verified := self._knowledge.verified_of(self._document.uri, target.symbol)) is not None:
            title = f"Use the verified kernel now: {target.symbol}, {verified.time}"
            yield self._command(title, REWRITE_KIND, "useNow", {"job": verified.job})
        if self._document.file is not None:
            yield self._command(f"Optimize to CUDA: {target.symbol}", REWRITE_KIND, "optimize", about)
            title = f"Optimize to CUDA with backward: {target.symbol}"
            yield self._command(title, REWRITE_KIND, "optimizeWithBackward", about)
            yield self._command(f"Estimate {target.symbol}", REWRITE_KIND, "estimate", about)
        yield from self._shapes(target, REWRITE_KIND)
        yield from self._use_everywhere(target)
        result = self._knowledge.last_result(self._document.file, target.symbol)
        if result is not None and is_offered(result.out, result.name):
            title = f"Use the optimized operator in all files: {result.name}"
            yield self._command(title, REWRITE_KIND, "useEverywhere", about)

    def _shapes(self, target: Target, kind: str) -> Iterator[types.CodeAction]:
        """Return the action that declares a target's shapes, as a quick fix if the client asks for quick fixes
        alone. Where code may run, the shapes are tried before they are written."""
        if not target.pragmas or not self._is_current:
            return
        title = f"Add shapes: {'; '.join(text for _, text in target.pragmas)}"
        if self._runs_code and self._document.file is not None:
            yield self._command(title, kind, "addShapes", {"uri": self._document.uri, "symbol": target.symbol})
        else:
            edit = self._edit(pragma_edits(self._document, target.pragmas))
            yield types.CodeAction(title=f"{title} (not tried)", kind=kind, edit=edit)

    def _selected_actions(self, first: int, last: int) -> Iterator[types.CodeAction]:
        target = self._analysis.target_at(first) if self._document.language == "python" else None
        if target is None or self._document.path is None or not target.forward_line < first <= last <= target.end_line:
            return
        about = {"uri": self._document.uri, "symbol": target.symbol, "firstLine": first, "lastLine": last}
        yield self._command("Optimize the selected lines", REWRITE_KIND, "optimizeLines", about)

    def _use_actions(self, place: Place) -> Iterator[types.CodeAction]:
        target = self._analysis.target(place.symbol)
        if target is not None:
            yield from self._use_action(target, [place], "here")
            yield from self._use_everywhere(target, at_least=2)

    def _use_everywhere(self, target: Target, at_least: int = 1) -> Iterator[types.CodeAction]:
        """Return the action that uses the operator in every call of this file, outside the target itself."""
        places = [place for place in self._analysis.places if place.symbol == target.symbol]
        outside = [p for p in places if not target.line <= p.range.start_line <= target.end_line]
        if len(outside) >= at_least and self._is_current:
            where = f"in {len(outside)} call{'s' if len(outside) > 1 else ''} of this file"
            yield from self._use_action(target, outside, where)

    def _use_action(self, target: Target, places: Sequence[Place], where: str) -> Iterator[types.CodeAction]:
        path = self._document.file
        result = self._knowledge.last_result(path, target.symbol)
        if result is None or path is None or not is_offered(result.out, result.name):
            return
        used = f"{USE_PREFIX}{result.name}("
        edits = [edit for place in places for edit in _use_edits(place, used, is_module=target.is_module)]
        statement = import_statement(path, result.out, result.name, self._analysis.import_style)
        if not {*statement.splitlines()} <= {text.rstrip() for text in self._document.lines}:
            place_, line_end = self._analysis.import_line, self._line_end()
            edits.append(TextEdit(TextRange(place_, 0, place_, 0), statement.replace("\n", line_end) + line_end))
        title = f"Use the optimized operator {where}: {result.name}"
        yield types.CodeAction(title=title, kind=REWRITE_KIND, edit=self._edit(edits))

    def _revert_action(self, use: Use) -> types.CodeAction:
        edits = [TextEdit(use.range, use.original)]
        if use.import_range.end_line > use.import_range.start_line:
            edits.append(TextEdit(use.import_range, ""))
        return types.CodeAction(title="Revert to PyTorch", kind=REWRITE_KIND, edit=self._edit(edits))

    def _edit(self, edits: Sequence[TextEdit]) -> types.WorkspaceEdit:
        changed = DocumentEdits(self._document, tuple(edits))
        return document_edit(changed, versioned=self._features.versioned_edits)

    def _command(self, title: str, kind: str, name: str, argument: dict[str, Any]) -> types.CodeAction:
        command = types.Command(title=title, command=f"kernelLsp.{name}", arguments=[argument])
        return types.CodeAction(title=title, kind=kind, command=command)

    def _line_end(self) -> str:
        return line_end(self._document)


def _use_edits(place: Place, used: str, *, is_module: bool) -> list[TextEdit]:
    """Wrap a module where it is constructed, and a function where it is called."""
    whole, callee = place.range, place.callee
    first, last = (whole, whole) if is_module else (callee, callee)
    return [
        TextEdit(TextRange(first.start_line, first.start_column, first.start_line, first.start_column), used),
        TextEdit(TextRange(last.end_line, last.end_column, last.end_line, last.end_column), ")"),
    ]


def _is_kind(kind: str | types.CodeActionKind | None, wanted: str) -> bool:
    """Compare hierarchical kinds: ``refactor`` includes ``refactor.rewrite``."""
    name = kind.value if isinstance(kind, types.CodeActionKind) else kind or ""
    return name == wanted or name.startswith(f"{wanted}.")
