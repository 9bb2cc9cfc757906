"""The table of alternatives to PyTorch's value: docs/checks.md has its rows."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.verify.oracle.compare_chunks import KINDS
from kernel_lsp.verify.oracle.judgement import ROW
from kernel_lsp.worker.oracle.alternatives import ALTERNATIVES

CHECKS = Path(__file__).parents[2] / "docs" / "checks.md"
ROWS = [*((row.name, row.pytorch, row.kernel) for row in KINDS), ROW]
ROWS += [(row.name, row.pytorch, row.kernel) for row in ALTERNATIVES]


def test_the_docs_have_the_table_of_alternatives() -> None:
    expected = "\n".join(f"| {name} | {pytorch} | {kernel} |" for name, pytorch, kernel in ROWS)
    listed = CHECKS.read_text().split("| row | PyTorch has | a kernel must have |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert listed == expected, f"docs/checks.md is stale; its table is:\n{expected}"


def test_alternatives_have_names_of_their_own() -> None:
    assert len({name for name, _, _ in ROWS}) == len(ROWS)
