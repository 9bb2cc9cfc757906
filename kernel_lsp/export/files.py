"""Write a kernel, its operator and their runtime into one folder: all files or none, and never over the user's own
files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME
from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.source.call_sites import OPERATOR_MARK

INIT_TEXT = '"""Operators written by kernel-lsp."""\n'
"""Makes a folder of operators a regular package, which an installed package of the same name cannot hide."""
_MARKER = OPERATOR_MARK + "operator 3): kernel {kernel}, operator {operator}."
_MARKED = re.compile(re.escape(OPERATOR_MARK) + r"operator \d+\): kernel ([0-9a-f]+), operator ([0-9a-f]+)\.\n")
_TASK_LINE = re.compile(r"^// task: (.+?)\s*$", re.MULTILINE)
_RUNTIME_MARKED = re.compile(re.escape(OPERATOR_MARK) + r"runtime \d+\): ([0-9a-f]+)\.\n")


@dataclass(frozen=True)
class RuntimeFile:
    """The module that the operators of a folder share. `module` has the version of its interface in its name, so that
    operators of two versions of kernel-lsp stand side by side."""

    module: str
    version: int
    text: str

    def marked_text(self) -> str:
        """Return the text below a line with its hash."""
        return f"# Written by kernel-lsp (runtime {self.version}): {_hash(self.text)}.\n{self.text}"


def write_operator_files(
    directory: Path, name: str, cu_text: str, operator_text: str, runtime: RuntimeFile
) -> tuple[Path, ...]:
    """Write what `operator_files` lists, and return their paths, the kernel and the operator first.

    Raises what `check_replaceable` raises, and EnvironmentProblem when the directory cannot be written; then the files
    are as they were.
    """
    texts = operator_files(directory, name, cu_text, operator_text, runtime)
    _replace_all(directory, texts)
    return tuple(texts)


def operator_files(
    directory: Path, name: str, cu_text: str, operator_text: str, runtime: RuntimeFile
) -> dict[Path, str]:
    """Return each file with its text: kernel, operator, shared runtime, and ``__init__.py`` where the folder is to be
    a package. Operator and runtime start with a marker line that has the hashes by which a later call knows its own
    files. Raises what `check_replaceable` raises."""
    kernel, operator = check_replaceable(directory, name, runtime.module)
    marker = _MARKER.format(kernel=_hash(cu_text), operator=_hash(operator_text))
    texts = {kernel: cu_text, operator: f"{marker}\n{operator_text}"}
    texts[_runtime_path(directory, runtime.module)] = runtime.marked_text()
    if not _has_other_python(directory, name):
        texts[directory / "__init__.py"] = INIT_TEXT
    return texts


def check_replaceable(directory: Path, name: str, runtime_module: str, target: str = "") -> tuple[Path, Path]:
    """Return where kernel and operator would be. Raises TargetError when a file is there that kernel-lsp did not
    write, or that was changed since; with a `target`, as seen from the directory, also when the kernel there is that of
    another one, which still exists."""
    kernel, operator = directory / f"{name}.cu", directory / f"{name}.py"
    hashes = _marked_hashes(operator)
    if _holds_something(kernel) and _hash(_read(kernel)) != hashes[0]:
        raise _not_ours(kernel)
    if target and kernel.exists():
        _check_same_target(kernel, target)
    runtime = _runtime_path(directory, runtime_module)
    if _holds_something(runtime) and not _is_unchanged(_read(runtime)):
        raise _not_ours(runtime)
    return kernel, operator


def _check_same_target(kernel: Path, target: str) -> None:
    task_line = _TASK_LINE.search(_read(kernel))
    other = task_line[1] if task_line is not None else target
    if _identity(kernel, other) == _identity(kernel, target) or not _is_defined(kernel, other):
        return
    raise TargetError(
        f"its name is taken: this is the kernel of {other}, whose operator programs may use",
        file=str(kernel),
        next_step=f"write that of {target} elsewhere: --out FOLDER, or the setting out_directory; or remove this file",
    )


def _identity(kernel: Path, target: str) -> tuple[str, str]:
    file, _, symbol = target.partition("::")
    return os.path.realpath(kernel.parent / file), symbol


def _is_defined(kernel: Path, target: str) -> bool:
    """Return True for a target of a user's file that has the symbol, and for any task folder. Files made of cells or
    of selected lines are renamed as their text changes."""
    file, symbol = _identity(kernel, target)
    if not os.path.isfile(file):
        return os.path.isdir(file)
    name = re.escape(symbol.rpartition(".")[2])
    return FOLDER_NAME not in Path(file).parts and bool(re.search(rf"\b(def|class)\s+{name}\b", _read(Path(file))))


def write_files(directory: Path, texts: Mapping[str, str], *, marker: str) -> tuple[Path, ...]:
    """Write a project's files by their paths in `directory`, all or none. The file `marker` keeps their hashes, by
    which a later call knows its own.

    Raises TargetError when a file is there that kernel-lsp did not write or that was changed since, EnvironmentProblem
    when the directory cannot be written.
    """
    known = _project_hashes(directory / marker)
    for name in texts:
        path = directory / name
        if path.exists() and _hash(_read(path)) != known.get(name):
            raise _not_ours(path)
    hashes = json.dumps({name: _hash(text) for name, text in texts.items()}, indent=1)
    paths = {directory / name: text for name, text in {**texts, marker: f"{hashes}\n"}.items()}
    _replace_all(directory, paths)
    return tuple(directory / name for name in texts)


def _project_hashes(marker: Path) -> dict[str, str]:
    if not marker.exists():
        return {}
    try:
        known = json.loads(_read(marker))
    except ValueError:
        raise _not_ours(marker) from None
    return known if isinstance(known, dict) else {}


def _runtime_path(directory: Path, module: str) -> Path:
    return directory / f"{module}.py"


def _is_unchanged(text: str) -> bool:
    marked = _RUNTIME_MARKED.match(text)
    return marked is not None and _hash(text[marked.end() :]) == marked[1]


def _has_other_python(directory: Path, name: str) -> bool:
    """Tell whether the folder holds Python files of the user's, or is a package already."""
    ours = (_MARKED.pattern, _RUNTIME_MARKED.pattern)
    files = [path for path in directory.glob("*.py") if path.name != f"{name}.py" and _holds_something(path)]
    texts = [_read(path) for path in files]
    return any(text != INIT_TEXT and not any(re.match(pattern, text) for pattern in ours) for text in texts)


def _holds_something(path: Path) -> bool:
    """Return True if the file has content. An editor that creates a file and keeps its text unsaved leaves an empty
    one, which is safe to replace."""
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def _marked_hashes(operator: Path) -> tuple[str, str]:
    """Return the hashes of the kernel and the operator at the time of writing; empty when no operator is there."""
    if not _holds_something(operator):
        return "", ""
    text = _read(operator)
    marked = _MARKED.match(text)
    if marked is None or _hash(text[marked.end() :]) != marked[2]:
        raise _not_ours(operator)
    return marked[1], marked[2]


def _not_ours(path: Path) -> TargetError:
    return TargetError(
        "this file is in the way: kernel-lsp did not write it, or it was changed since",
        file=str(path),
        next_step="move it away, or name another folder with --out",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EnvironmentProblem(f"cannot be read: {error.strerror}", file=str(path)) from error


def _hash(text: str) -> str:
    return sha256_of(text, SHORT_DIGITS)


def _replace_all(directory: Path, texts: Mapping[Path, str]) -> None:
    """Write every text to a temporary file first, and move them into place only when all are on the disk."""
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    temporary: dict[Path, str] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary[path] = _write_temporary(path.parent, path.name, text)
        for path in texts:
            os.replace(temporary[path], path)
    except OSError as error:
        _restore(before, temporary)
        raise EnvironmentProblem(
            f"the result cannot be written: {error.strerror or error}",
            file=str(directory),
            next_step="name a folder that can be written with --out, or make room on the disk",
        ) from error


def _write_temporary(directory: Path, name: str, text: str) -> str:
    descriptor, path = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(path, 0o666 & ~_umask())
    except OSError:
        os.unlink(path)
        raise
    return path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _restore(before: Mapping[Path, bytes | None], temporary: Mapping[Path, str]) -> None:
    for leftover in temporary.values():
        with contextlib.suppress(OSError):
            os.unlink(leftover)
    for path, content in before.items():
        with contextlib.suppress(OSError):
            if content is None:
                path.unlink(missing_ok=True)
            elif path.read_bytes() != content:
                path.write_bytes(content)
