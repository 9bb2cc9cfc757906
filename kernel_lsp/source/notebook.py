"""Convert notebook cells to Python: without notebook-only syntax, and as a file of their definitions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

PYTHON_CELL_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cell magics followed by Python code."""
_MAGIC_STARTS = ("%", "!", "?")
_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def without_magics(cell: str) -> str:
    """Replace each line that is not Python by `pass`; blank a cell in another language. Preserves lines."""
    lines = cell.split("\n")
    if lines[0].startswith("%%") and lines[0].split(" ")[0].rstrip() not in PYTHON_CELL_MAGICS:
        return "\n".join("" for _ in lines)
    return "\n".join(_without_magic(line) for line in lines)


def definitions_of(cells: Sequence[str], folder: str) -> str:
    """Return an importable file of the cells' definitions, without their side effects: imports, functions, classes, and
    names of plain values. Lines are shifted down by one; the first line adds `folder` to the module search path. Cells
    that do not parse are omitted."""
    parts = [f"import sys; sys.path.insert(0, {folder!r})"]
    parts += [_definitions(without_magics(cell)) for cell in cells]
    return "\n".join(parts) + "\n"


def _without_magic(line: str) -> str:
    code = line.lstrip()
    return line[: len(line) - len(code)] + "pass" if code.startswith(_MAGIC_STARTS) else line


def _definitions(cell: str) -> str:
    """Return the cell with everything else blanked; comments stay, since a pragma is one."""
    lines = cell.split("\n")
    try:
        statements = ast.parse(cell).body
    except (SyntaxError, ValueError):
        return "\n".join("" for _ in lines)
    for statement in statements:
        if not _is_defining(statement):
            for number in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                lines[number - 1] = ""
    return "\n".join(lines)


def _is_defining(statement: ast.stmt) -> bool:
    if isinstance(statement, _DEFINING):
        return True
    is_named = isinstance(statement, ast.Assign) and all(isinstance(name, ast.Name) for name in statement.targets)
    return is_named and isinstance(statement, ast.Assign) and _is_plain(statement.value)


def _is_plain(value: ast.expr) -> bool:
    """Return True for numbers, texts, names, attributes (``torch.float16``) and arithmetic on them, without calls."""
    return not any(isinstance(node, ast.Call | ast.Await | ast.Subscript | ast.Lambda) for node in ast.walk(value))
