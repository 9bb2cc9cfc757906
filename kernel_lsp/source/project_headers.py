"""Find the headers of the user's project that a `.cu` file includes, as its build with ``-I`` flags does."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from pathlib import Path

from kernel_lsp.config import find_workspace
from kernel_lsp.source.workspace_files import MAX_FILE_BYTES, SKIPPED

SUFFIXES = (".cuh", ".h", ".hpp", ".hh", ".inl", ".cu")
MAX_FOLDERS = 4_000
"""Maximum folders of a project to look for headers in; what lies beyond is not found."""
MAX_HEADERS = 200
BUILD_FILES = ("Makefile", "makefile", "CMakeLists.txt", "compile_commands.json", "meson.build", "setup.py")
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"\n]+)"|<(?P<angle>[^>\n]+\.cuh)>)', re.M
)  # fmt: skip


@dataclass
class ProjectHeaders:
    """Headers by the name in the directive that includes them, and the folders of ``-I`` flags that reach them."""

    files: dict[str, Path] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)

    def texts(self) -> dict[str, str]:
        return {name: file.read_text(encoding="utf-8", errors="replace") for name, file in self.files.items()}

    @property
    def readable(self) -> tuple[Path, ...]:
        """Return the folders that a compiler has to read."""
        return tuple(dict.fromkeys((*self.folders, *(file.parent for file in self.files.values()))))


def project_headers(file: Path, text: str) -> ProjectHeaders:
    """Return the headers that the text includes, directly or through others. Those of the CUDA toolkit, of the
    compiler and of libraries outside of the project are not among them."""
    found = ProjectHeaders()
    search = _Search(file.absolute().parent)
    waiting = [(file.absolute().parent, text)]
    while waiting and len(found.files) < MAX_HEADERS:
        folder, including = waiting.pop()
        for name in _included(including):
            header = None if name in found.files else _beside(name, (folder, *found.folders)) or search.find(name)
            if header is None:
                continue
            found.files[name] = header
            root = header.parents[len(Path(os.path.normpath(name)).parts) - 1]
            if not (folder / name).is_file() and root not in found.folders:
                found.folders.append(root)
            waiting.append((header.parent, header.read_text(encoding="utf-8", errors="replace")))
    return found


def _included(text: str) -> Iterator[str]:
    return (match["quoted"] or match["angle"] for match in _INCLUDE.finditer(text))


def _beside(name: str, folders: tuple[Path, ...]) -> Path | None:
    """Return the header below one of these folders."""
    paths = (Path(os.path.normpath(folder / name)) for folder in folders)
    return next((path for path in paths if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES), None)


class _Search:
    """The headers of the project by file name; its folders are read when the first is looked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_name: dict[str, list[Path]] | None = None

    def find(self, name: str) -> Path | None:
        """Return the header with this path at its end, the nearest to the file where there are several."""
        if self._by_name is None:
            self._by_name = _headers_below(_project(self._directory))
        parts = Path(os.path.normpath(name)).parts
        if not parts or ".." in parts:
            return None
        several = [path for path in self._by_name.get(parts[-1], ()) if path.parts[-len(parts) :] == parts]
        return max(several, key=lambda path: (self._n_shared(path), -len(path.parts)), default=None)

    def _n_shared(self, path: Path) -> int:
        """Count the leading parts that a path shares with the file's folder."""
        return len(Path(os.path.commonpath((path, self._directory))).parts)


def _project(directory: Path) -> Path:
    """Return the workspace; where nothing marks one, the outermost of the nearest folders in a row with build files."""
    workspace = find_workspace(directory)
    if workspace != directory or any((directory / mark).exists() for mark in (".git", "pyproject.toml")):
        return workspace
    above = dropwhile(lambda folder: not _is_built(folder), (directory, *directory.parents))
    return [directory, *takewhile(_is_built, above)][-1]


def _is_built(folder: Path) -> bool:
    """Check for a build file in a folder that not everybody may write to."""
    has_file = any((folder / name).is_file() for name in BUILD_FILES)
    return has_file and not folder.stat().st_mode & stat.S_IWOTH


def _headers_below(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for number, (at, folders, files) in enumerate(os.walk(folder)):
        if number >= MAX_FOLDERS:
            break
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in files:
            if name.endswith(SUFFIXES):
                found.setdefault(name, []).append(Path(at) / name)
    return found
