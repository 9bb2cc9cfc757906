"""The imports of an operator file and of the runtime: merged, and sorted as isort does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

OPERATOR_IMPORTS = (
    "import json",
    "import math",
    "from collections.abc import Callable, Sequence",
    "from pathlib import Path",
    "from typing import Any",
    "import torch",
    "import torch.nn.functional as F",
    "from torch import Tensor",
)
"""Imports available to a file. Each file gets those that it mentions."""


def imports(body: str) -> list[str]:
    """Print the imports of the names that the body mentions."""
    used = []
    for line in OPERATOR_IMPORTS:
        module = re.match(r"from (\S+) import", line)
        after = r"\b" if module else r"\."
        names = [name for name in _bound_names(line) if re.search(rf"\b{name}{after}", body)]
        if names:
            used.append(f"from {module[1]} import {', '.join(names)}" if module else line)
    return merged_imports(used)


def merged_imports(statements: Iterable[str]) -> list[str]:
    """Merge and sort import statements, the standard library's before torch's."""
    lines = _merged(statements)
    third_party = {line for line in lines if re.match(r"(from|import) torch\b", line)}
    blocks = [sorted(lines - third_party, key=_import_order), sorted(third_party, key=_import_order)]
    return ["from __future__ import annotations", *(line for block in blocks if block for line in ("", *block))]


def imported_names() -> set[str]:
    """Return every name that an import of `OPERATOR_IMPORTS` may bind."""
    return {name for line in OPERATOR_IMPORTS for name in _bound_names(line)}


def _merged(lines: Iterable[str]) -> set[str]:
    """Merge the imports into one line per module."""
    merged: set[str] = set()
    names: dict[str, set[str]] = {}
    for line in lines:
        if match := re.fullmatch(r"from (\S+) import (.+)", line):
            names.setdefault(match[1], set()).update(match[2].split(", "))
        else:
            merged.add(line)
    names.pop("__future__", None)
    return merged | {f"from {module} import {', '.join(sorted(found))}" for module, found in names.items()}


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1]


def _bound_names(line: str) -> list[str]:
    statement = ast.parse(line).body[0]
    assert isinstance(statement, ast.Import | ast.ImportFrom), line
    return [alias.asname or alias.name for alias in statement.names]
