"""Rewrite the calls of a target in all files of a workspace, so that they use its operator, and back."""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp.source.python_file import USE_PREFIX, ImportStyle, import_line, import_style, symbol_called
from kernel_lsp.source.pytorch import KERNELBENCH_CLASS
from kernel_lsp.source.workspace_files import (
    MAX_FILES,
    MAX_SCAN_S,
    File,
    imported_names,
    is_test,
    python_files,
    read_file,
)

OPERATOR_MARK = "# Written by kernel-lsp ("
"""First characters of an operator's file and of its runtime."""
METHOD = re.compile(r'\bmethod="(\w+)"')


@dataclass(frozen=True)
class Operator:
    """A written operator: the target's file and symbol, the method of a module that it computes, the folder of its
    files, and its name."""

    file: Path
    symbol: str
    method: str
    out: Path
    name: str

    @property
    def called(self) -> str:
        """Return the name whose calls use the operator: of a method, the class whose modules have it."""
        return called_name(self.symbol, self.method)


@dataclass(frozen=True)
class Rewritten:
    """New texts of files, by path. `is_complete` is false where a limit ended the scan; `n_in_tests` are the calls that
    stay, since tests are to see PyTorch's code."""

    texts: dict[Path, str] = field(default_factory=dict)
    n_sites: int = 0
    n_in_tests: int = 0
    is_complete: bool = True


@dataclass(frozen=True)
class _Edit:
    """Replacement of the bytes from `first` up to `last`."""

    first: int
    last: int
    text: str
    is_of_call: bool = True


def use_operator(root: Path, operator: Operator) -> Rewritten:
    """Return the texts in which every call of the target outside of tests uses the operator."""
    word = operator.called.rpartition(".")[2]
    return _rewritten(root, word, lambda file: _use_edits(file, root, operator), is_kept=is_test)


def revert_operator(root: Path, name: str) -> Rewritten:
    """Return the texts in which no call uses the operator of this name."""
    return _rewritten(root, f"{USE_PREFIX}{name}", lambda file: _revert_edits(file, name))


def _rewritten(
    root: Path, word: str, edits_of: Callable[[File], list[_Edit]], is_kept: Callable[[Path], bool] = lambda _: False
) -> Rewritten:
    """Rewrite the files that have the word and are not kept. A call has two edits, one before and one after it."""
    texts: dict[Path, str] = {}
    n_sites, n_kept, deadline = 0, 0, time.monotonic() + MAX_SCAN_S
    for number, path in enumerate(python_files(root)):
        if number >= MAX_FILES or time.monotonic() > deadline:
            return Rewritten(texts, n_sites, n_kept, is_complete=False)
        file = read_file(path, word)
        edits = [] if file is None else edits_of(file)
        n_calls = sum(edit.is_of_call for edit in edits) // 2
        if is_kept(path.relative_to(root)):
            n_kept += n_calls
        elif file is not None and edits:
            texts[path] = _applied(file.data, edits).decode()
            n_sites += n_calls
    return Rewritten(texts, n_sites, n_kept)


def _applied(data: bytes, edits: list[_Edit]) -> bytes:
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        data = data[: edit.first] + edit.text.encode() + data[edit.last :]
    return data


def _use_edits(file: File, root: Path, operator: Operator) -> list[_Edit]:
    names = dict(_names(file, root, operator))
    used = f"{USE_PREFIX}{operator.name}"
    own = (used, f"{operator.name}.{used}")
    wrapped = {id(inner) for call in file.calls if _wraps(call, *own) for inner in _inside(call)}
    edits: list[_Edit] = []
    statements: set[str] = set()
    lines: list[int] = []
    for call in file.calls:
        called = symbol_called(call.func, file.named)
        if called not in names or id(call) in wrapped or _is_within(call, file, operator):
            continue
        first, last = file.span(call) if operator.method else file.span(call.func)
        edits += [_Edit(first, first, f"{used}("), _Edit(last, last, ")")]
        statements.add(names[called])
        lines.append(call.lineno)
    place = file.below(import_line(file.tree, lines))
    known = set(file.data.decode().split(file.line_end))
    missing = [text for text in sorted(statements)[:1] if not set(text.split("\n")) <= known]
    edits += [_Edit(place, place, f"{text}\n".replace("\n", file.line_end), is_of_call=False) for text in missing]
    return edits


def _names(file: File, root: Path, operator: Operator) -> Iterator[tuple[str, str]]:
    """Yield the names under which the file calls the target, each with the import of its operator."""
    if file.path.resolve() == operator.file.resolve():
        style = import_style(file.path, file.tree)
        yield operator.called, import_statement(file.path, operator.out, operator.name, style)
        return
    for name, base, level in imported_names(file, root, operator.file, operator.called):
        yield name, _import_of(base, level, operator)


def _import_of(base: Path, level: int, operator: Operator) -> str:
    """Return the operator's import beside one of the target's module from the folder `base`."""
    parts = Path(os.path.relpath(operator.out, base)).parts
    path = ".".join([*(part for part in parts if part not in (".", "..")), operator.name])
    dots = "." * (level + parts.count("..") if level else 0)
    return f"from {dots}{path} import {USE_PREFIX}{operator.name}"


def _is_within(call: ast.Call, file: File, operator: Operator) -> bool:
    """Check whether the call is in the target's own definition."""
    if file.path.resolve() != operator.file.resolve():
        return False
    node = file.named.get(operator.called)
    return node is not None and node.lineno <= call.lineno <= (node.end_lineno or node.lineno)


def _revert_edits(file: File, name: str) -> list[_Edit]:
    used = f"{USE_PREFIX}{name}"
    imports = [node for node in file.tree.body if _imports(node, name)]
    if not imports:
        return []
    edits: list[_Edit] = []
    for call in file.calls:
        if _wraps(call, used):
            first, last = file.span(call)
            inner = file.span(call.args[0])
            edits += [_Edit(first, inner[0], ""), _Edit(inner[1], last, "")]
    names = [node.id for node in ast.walk(file.tree) if isinstance(node, ast.Name) and node.id == used]
    if len(names) == len(edits) // 2:
        spans = [(file.at(node.lineno, 0), file.below(node.end_lineno or node.lineno)) for node in imports]
        edits += [_Edit(first, last, "", is_of_call=False) for first, last in spans]
    return edits


def _wraps(call: ast.Call, *used: str) -> bool:
    return isinstance(call.func, ast.Name | ast.Attribute) and ast.unparse(call.func) in used and len(call.args) == 1


def _inside(call: ast.Call) -> Iterator[ast.expr]:
    """Yield what a use wraps, below further operators of the same class."""
    inner = call.args[0]
    yield inner
    name = ast.unparse(inner.func).rpartition(".")[2] if isinstance(inner, ast.Call) else ""
    if isinstance(inner, ast.Call) and name.startswith(USE_PREFIX) and len(inner.args) == 1:
        yield from _inside(inner)


def _imports(node: ast.stmt, name: str) -> bool:
    """Check whether a statement imports the operator alone, in one way or in two: see `import_statement`."""
    match node:
        case ast.ImportFrom(module=module, names=[ast.alias(name=imported, asname=None)]):
            return imported == f"{USE_PREFIX}{name}" and (module or "").split(".")[-1] == name
        case ast.Try(body=[inside], handlers=[ast.ExceptHandler(body=[outside])], orelse=[], finalbody=[]):
            return _imports(inside, name) and _imports(outside, name)
    return False


def import_statement(file: Path, out: Path, name: str, style: ImportStyle) -> str:
    """Return ``from .kernels.softmax import use_softmax``, or a statement of several lines that works for a script and
    in a package alike. Without a package the folder must be below the file's."""
    parts = Path(os.path.relpath(out, file.parent)).parts
    module = ".".join([*(part for part in parts if part not in (".", "..")), name])
    absolute, relative = (f"from {dot}{module} import {USE_PREFIX}{name}" for dot in ("", "."))
    if style == "either":
        return f"try:\n    {relative}\nexcept ImportError:  # run as a script\n    {absolute}"
    return relative if style == "relative" else absolute


def is_offered(out: Path, name: str) -> bool:
    """Return True if the operator's file exists and can replace something in the user's code."""
    return f"def {USE_PREFIX}{name}(" in _text_of(out, name)


def takes_more(out: Path, name: str) -> bool:
    """Return True if the operator's file exists and has arguments that no call of the user's code gives."""
    return f"def {name}(" in _text_of(out, name) and not is_offered(out, name)


def called_name(symbol: str, method: str) -> str:
    """Return the name that makes what the operator is put into: of a module's method the class, else the target. A
    KernelBench file has its class without being asked."""
    return symbol.removesuffix(f".{method}") or KERNELBENCH_CLASS


def method_used(out: Path, name: str) -> str:
    """Return the method of a module that the operator computes; empty for the operator of a function."""
    return method_in(_text_of(out, name), name)


def method_in(text: str, name: str) -> str:
    """Return what `method_used` returns for the text of an operator's file."""
    method = METHOD.search(text) if f"def {USE_PREFIX}{name}(module:" in text else None
    return method[1] if method is not None else ""


def _text_of(out: Path, name: str) -> str:
    try:
        return (out / f"{name}.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
