"""Read the Python files of a workspace as text, and find the names by which each imports a definition of another.

An import counts where its module's path, from the importing file or a folder above it, is the definition's file, or
that of a module that passes it on.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeGuard

from kernel_lsp.source.python_file import Definition, nested

MAX_FILES = 2_000
"""Maximum Python files to read; a folder with more is probably a home directory, not a project."""
MAX_FILE_BYTES = 400_000
MAX_SCAN_S = 10.0
"""Maximum seconds of one scan: someone waits for it."""
SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "build", "dist"))
"""Folders without the user's own code. Hidden folders and environments are skipped, too."""
MAX_PASSED_ON = 3
"""Maximum modules between a file and the target's, each of which imports it from the next."""
LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class File:
    """A parsed file. `starts` are the byte offsets of its lines."""

    path: Path
    data: bytes
    tree: ast.Module
    starts: tuple[int, ...]

    def span(self, node: ast.expr) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def below(self, line: int) -> int:
        """Return the offset of the line after a 1-based line."""
        return self.starts[line] if line < len(self.starts) else len(self.data)

    @cached_property
    def named(self) -> dict[str, Definition]:
        return dict(nested(self.tree.body))

    @property
    def line_end(self) -> str:
        return "\r\n" if b"\r\n" in self.data else "\n"

    @property
    def calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, sorted, without those of environments and of hidden and `SKIPPED` folders."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(place) / name))
        yield from (Path(place) / name for name in sorted(names) if name.endswith(".py"))


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in SKIPPED or (folder / "pyvenv.cfg").exists()


def is_test(path: Path) -> bool:
    """Return True for a file that pytest or unittest collects by its name or folder. `path` is relative to the root."""
    is_named = path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem == "conftest"
    return is_named or bool({"tests", "test"}.intersection(path.parts[:-1]))


def read_file(path: Path, word: str) -> File | None:
    """Return the parsed file; None for one without the word, and for what is no Python text."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_FILE_BYTES else b""
        if word.encode() not in data:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data.decode())
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return None
    return File(path, data, tree, (0, *(match.end() for match in LINE_END.finditer(data))))


def imported_names(
    file: File, root: Path, target: Path, called: str, depth: int = MAX_PASSED_ON
) -> Iterator[tuple[str, Path, int]]:
    """Yield the names under which another file calls `called` of the target's file, each with the folder from which it
    imports, and the level of its import."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                for base, name in _offered(alias.name, 0, file, root, target, called, depth):
                    yield f"{alias.asname or alias.name}.{name}", base, 0
        elif isinstance(node, ast.ImportFrom):
            offered = [*_offered(node.module or "", node.level, file, root, target, called, depth)]
            for alias in node.names:
                for base, name in offered:
                    head, dot, inner = name.partition(".")
                    if alias.name in (head, "*"):
                        yield f"{alias.asname or head}{dot}{inner}", base, node.level
                inside = f"{node.module}.{alias.name}" if node.module else alias.name
                for base, name in _offered(inside, node.level, file, root, target, called, depth):
                    yield f"{alias.asname or alias.name}.{name}", base, node.level


def _offered(
    module: str, level: int, file: File, root: Path, target: Path, called: str, depth: int
) -> Iterator[tuple[Path, str]]:
    """Yield the names that an imported module has for `called`, each with the folder that the import is relative to:
    the target's own, or those by which another module passes it on."""
    places = module_places(module, level, file, root)
    if found := next((base for base, path in places if path == target), None):
        yield found, called
        return
    base, path = next(((base, path) for base, path in places if depth and path.is_file()), (root, file.path))
    if path != file.path:
        names = _passed_on(path, path.stat().st_mtime_ns, root, target, called, depth - 1)
        yield from ((base, name) for name in names)


def module_places(module: str, level: int, file: File, root: Path) -> list[tuple[Path, Path]]:
    """Return the paths that a module may have, each with the folder that its import is relative to."""
    parents = list(file.path.parents)
    above = parents[: parents.index(root) + 1] if root in parents else parents[:1]
    bases = parents[level - 1 : level] if level else [*above, root / "src"]
    parts = [part for part in module.split(".") if part]
    files = [f"{'/'.join(each)}.py" for each in ([*parts, "__init__"], parts) if each]
    return [(base, base / name) for base in bases for name in files]


@lru_cache(maxsize=256)
def _passed_on(path: Path, _modified_ns: int, root: Path, target: Path, called: str, depth: int) -> tuple[str, ...]:
    """Return the names under which a module has `called` of another file: a package's ``__init__.py``, for example."""
    file = read_file(path, "import")
    names = {} if file is None else {name: None for name, _, _ in imported_names(file, root, target, called, depth)}
    renamed = () if file is None else (node.targets[0] for node in file.tree.body if renames(node, set(names)))
    return tuple(names | {each.id: None for each in renamed if isinstance(each, ast.Name)})


def renames(node: ast.stmt, names: set[str]) -> TypeGuard[ast.Assign]:
    """Return whether a statement gives a name another one: ``Net = layers.Project``."""
    is_one = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    return is_one and isinstance(node, ast.Assign) and ast.unparse(node.value) in names
