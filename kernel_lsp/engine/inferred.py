"""Complete a target by inferred pragmas: one candidate for each set of example sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.target import TargetSource
from kernel_lsp.errors import UnknownInputsError
from kernel_lsp.source.inference.proposal import EXAMPLES
from kernel_lsp.source.python_file import PythonFile, parse_python, read_python_file
from kernel_lsp.source.pytorch import read_symbol


@dataclass(frozen=True)
class Candidate:
    """A target as it reads with these pragmas."""

    source: TargetSource
    texts: tuple[str, ...]


def candidate_inputs(path: Path, symbol: str) -> list[Candidate]:
    """Return the candidates in order of preference. Raises TargetError for a target that no pragma completes."""
    source = read_python_file(path, str(path))
    candidates: dict[tuple[str, ...], Candidate] = {}
    for example in EXAMPLES:
        try:
            return [Candidate(read_symbol(symbol, path, source, example), ())]
        except UnknownInputsError as unknown:
            if not unknown.pragmas:
                raise
            texts = tuple(text for _, text in unknown.pragmas)
            if texts not in candidates:
                candidates[texts] = Candidate(_completed(source, path, symbol, unknown.pragmas), texts)
    return list(candidates.values())


# --- below


def _completed(source: PythonFile, path: Path, symbol: str, pragmas: Sequence[tuple[int, str]]) -> TargetSource:
    """Read the target with the pragmas in the text. Its line is that of the text without."""
    lines = list(source.lines)
    for line, text in sorted(pragmas, reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        lines.insert(line - 1, f"{indent}{text}")
    found = read_symbol(symbol, path, parse_python("\n".join(lines), str(path)))
    definition = source.definition(symbol)
    assert definition is not None, "a target that lacks pragmas is defined"
    return found.model_copy(update={"line": definition.lineno})
