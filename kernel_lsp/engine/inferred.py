"""Infer the shapes that a target lacks, in a job's own process. A person waits for it, so this imports little."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp.config import find_workspace
from kernel_lsp.core.event import StageStarted
from kernel_lsp.core.task import TargetSource
from kernel_lsp.engine.generated import write_cells
from kernel_lsp.engine.messages import InferInputs, InferredInputs, JobNews
from kernel_lsp.errors import UnknownInputsError
from kernel_lsp.source.inference.pragma_proposal import EXAMPLES
from kernel_lsp.source.inference.workspace_calls import calls_elsewhere
from kernel_lsp.source.python_file import PythonFile, parse_python, read_python_file
from kernel_lsp.source.pytorch import read_symbol
from kernel_lsp.verify.session.start import SessionStart


async def infer(request: InferInputs, tell: Callable[[JobNews], None], start: SessionStart) -> InferredInputs:
    """Return the pragmas of the first candidate that the code accepts. Raises KernelLspError."""
    file, _, symbol = request.target.partition("::")
    path = Path(os.path.abspath(request.directory / file))
    if request.cells:
        path, symbol = write_cells(request)
    candidates = candidate_inputs(path, symbol)
    tell(StageStarted(message=f"trying shapes for {symbol}"))
    start.check()
    accepted = await start.worker.try_inputs([candidate.source for candidate in candidates])
    return InferredInputs(texts=candidates[accepted].texts)


@dataclass(frozen=True)
class CompletedTarget:
    """A target as it reads with these pragmas."""

    source: TargetSource
    texts: tuple[str, ...]


def candidate_inputs(path: Path, symbol: str) -> list[CompletedTarget]:
    """Return the candidates in order of preference. Raises TargetError for a target that no pragma completes."""
    source = read_python_file(path, str(path))
    called = symbol if isinstance(source.named.get(symbol), ast.ClassDef) else symbol.rpartition(".")[0] or symbol
    calls = calls_elsewhere(find_workspace(path.parent), path, called)
    source = replace(source, elsewhere=tuple((called.rpartition(".")[2], call) for call in calls))
    candidates: dict[tuple[str, ...], CompletedTarget] = {}
    for example in EXAMPLES:
        try:
            return [CompletedTarget(read_symbol(symbol, path, source, example), ())]
        except UnknownInputsError as unknown:
            if not unknown.pragmas:
                raise
            texts = tuple(text for _, text in unknown.pragmas)
            if texts not in candidates:
                candidates[texts] = CompletedTarget(_completed(source, path, symbol, unknown.pragmas), texts)
    return list(candidates.values())


def _completed(source: PythonFile, path: Path, symbol: str, pragmas: Sequence[tuple[int, str]]) -> TargetSource:
    """Read the target with the pragmas in the text. Its line is that of the text without."""
    lines = list(source.lines)
    for line, text in sorted(pragmas, reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        lines.insert(line - 1, f"{indent}{text}")
    found = read_symbol(symbol, path, parse_python("\n".join(lines), str(path), origin=path))
    definition = source.definition(symbol)
    assert definition is not None, "a target that lacks pragmas is defined"
    return found.model_copy(update={"line": definition.lineno})
