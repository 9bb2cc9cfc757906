"""The parts of an operator file that are the same in all: read from the worker, where they are run and tested too."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SUPPORT = "operator_support.py"
PARTS = (SUPPORT, "operator_launches.py", "cuda_runtime.py")
"""In the order in which they stand in the file."""
SECTION_MARK = "\n# --- "
"""Ends the imports of a part."""
_WORKER = Path(__file__).parents[2] / "worker" / "shipped"


@cache
def runtime_sections(parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """Each part below its imports, word for word."""
    texts = (_part(name) for name in parts)
    return tuple(text[text.index(SECTION_MARK) + 1 :].rstrip("\n") for text in texts)


@cache
def runtime_imports(parts: tuple[str, ...] = PARTS) -> frozenset[str]:
    """The lines that import what the parts use, but for each other."""
    lines = (line for name in parts for line in _part(name).split(SECTION_MARK)[0].splitlines())
    return frozenset(line for line in lines if line.startswith(("import ", "from ")) and not line.startswith("from ."))


@cache
def runtime_names() -> frozenset[str]:
    """Everything that the parts define or import at their top level."""
    return frozenset(name for part in PARTS for node in ast.parse(_part(part)).body for name in _defined(node))


# --- below


@cache
def _part(name: str) -> str:
    return (_WORKER / name).read_text(encoding="utf-8")


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            return [name.id for name in names]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []
