"""The imports of an operator file: what its runtime needs, and of the rest what the file mentions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from kernel_lsp.export.python.runtime_text import PARTS, runtime_imports

OPERATOR_IMPORTS = (
    "import functools",
    "import json",
    "import math",
    "import types",
    "import warnings",
    "from collections.abc import Callable",
    "from operator import attrgetter",
    "from pathlib import Path",
    "import torch.nn.functional as F",
    "from torch import Tensor",
)
"""What the parts above the runtime may use; a file gets those that it mentions."""


def imports(body: str, parts: tuple[str, ...] = PARTS) -> list[str]:
    """Those of the runtime, and of the rest what the body mentions, merged and sorted as isort does."""
    used = [line for line in OPERATOR_IMPORTS if re.search(_use_of(line), body)]
    lines = _merged({*runtime_imports(parts), *used})
    third_party = {line for line in lines if re.match(r"(from|import) torch\b", line)}
    return [
        "from __future__ import annotations",
        "",
        *sorted(lines - third_party, key=_import_order),
        "",
        *sorted(third_party, key=_import_order),
    ]


def imported_names() -> set[str]:
    """Every name that an import of `OPERATOR_IMPORTS` may bind."""
    return {_bound_name(line) for line in OPERATOR_IMPORTS}


# --- below: one line


def _merged(lines: Iterable[str]) -> set[str]:
    """One line per module that names are imported from."""
    merged = {line for line in lines if line.startswith("import ")}
    names: dict[str, set[str]] = {}
    for line in lines:
        if match := re.fullmatch(r"from (\S+) import (.+)", line):
            names.setdefault(match[1], set()).update(match[2].split(", "))
    del names["__future__"]
    return merged | {f"from {module} import {', '.join(sorted(found))}" for module, found in names.items()}


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1]


def _use_of(line: str) -> str:
    """A pattern for text that needs the import."""
    return rf"\b{_bound_name(line)}" + (r"\." if line.startswith("import ") else r"\b")


def _bound_name(line: str) -> str:
    statement = ast.parse(line).body[0]
    assert isinstance(statement, ast.Import | ast.ImportFrom), line
    alias = statement.names[0]
    return alias.asname or alias.name
