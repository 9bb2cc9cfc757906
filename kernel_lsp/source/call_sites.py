"""Rewrite the calls of a target in all files of a workspace, so that they use its operator, and back.

Only text is read: an import counts where its module's path, from the importing file or a folder above it, is the
target's file, or that of a module that passes the target on.
"""

from __future__ import annotations

import ast
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeGuard

from kernel_lsp.source.call_arguments import Function, Module, Place, literal_of
from kernel_lsp.source.python_file import (
    USE_PREFIX,
    Definition,
    ImportStyle,
    import_line,
    import_style,
    nested,
    symbol_called,
)
from kernel_lsp.source.pytorch import KERNELBENCH_CLASS

OPERATOR_MARK = "# Written by kernel-lsp ("
"""First characters of an operator's file and of its runtime."""
MAX_FILES = 2_000
"""Maximum Python files to read; a folder with more is probably a home directory, not a project."""
MAX_FILE_BYTES = 400_000
MAX_SCAN_S = 10.0
"""Maximum seconds of one scan: someone waits for it."""
SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "build", "dist"))
"""Folders without the user's own code. Hidden folders and environments are skipped, too."""
MAX_FACTORIES = 2
"""Maximum factory functions between a call and the values that it is given."""
MAX_PASSED_ON = 3
"""Maximum modules between a file and the target's, each of which imports it from the next."""
UNKNOWN_NAME = "<unknown>"
"""Name of what a call gives and its text does not say."""
METHOD = re.compile(r'\bmethod="(\w+)"')
LINE_END = re.compile(rb"\r\n|\r|\n")


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
    return _rewritten(root, word, lambda file: _use_edits(file, root, operator), is_kept=_is_test)


def revert_operator(root: Path, name: str) -> Rewritten:
    """Return the texts in which no call uses the operator of this name."""
    return _rewritten(root, f"{USE_PREFIX}{name}", lambda file: _revert_edits(file, name))


def calls_elsewhere(root: Path, target: Path, called: str) -> Iterator[ast.Call]:
    """Yield the calls of `called` in the other files of a workspace without tests, whose sizes are small. Of their
    arguments those stay whose values the workspace's text says; any other one is a name that nothing defines."""
    return _CallReader(root, time.monotonic() + MAX_SCAN_S).calls(target, called, MAX_FACTORIES)


@dataclass(frozen=True)
class _CallReader:
    """Reads calls and their values in a workspace until `deadline`, those of each function once."""

    root: Path
    deadline: float
    known: dict[tuple[Path, str], list[ast.Call]] = field(default_factory=dict)

    def calls(self, target: Path, called: str, n_factories: int) -> Iterator[ast.Call]:
        """Yield the calls of a file's function or class. Up to `n_factories` stand between a call and its values."""
        for file, names in self._callers_of(target, called):
            module = self._module(file, n_factories)
            inside = {
                id(each): node for node in ast.walk(file.tree) if isinstance(node, Function) for each in ast.walk(node)
            }
            for call in map(_without_partial, file.calls):
                if isinstance(call.func, ast.Name | ast.Attribute) and ast.unparse(call.func) in names:
                    place = Place(module, inside.get(id(call.func)))
                    arguments = [_literal(each, place) for each in call.args]
                    keywords = [
                        ast.keyword(name, _literal(value, place))
                        for each in call.keywords
                        for name, value in _spread(each, file)
                    ]
                    yield ast.Call(call.func, arguments, keywords)

    def _callers_of(self, target: Path, called: str) -> Iterator[tuple[_File, set[str]]]:
        """Yield the other files that may call `called`, each with its names there. Files that give it another name are
        read first, and then those that have that name alone."""
        paths = [path for path in islice(python_files(self.root), MAX_FILES) if path != target]
        waiting, done = [called.rpartition(".")[2]], set[Path]()
        for word in waiting:
            for path in paths:
                is_read = path not in done and not _is_test(path.relative_to(self.root))
                file = _read(path, word) if is_read and time.monotonic() < self.deadline else None
                if file is None:
                    continue
                done.add(path)
                names = {name for name, _, _ in _imported(file, self.root, target, called)}
                renamed = {ast.unparse(node.targets[0]) for node in file.tree.body if _renames(node, names)}
                waiting += sorted(renamed - {*waiting})[:MAX_PASSED_ON]
                yield file, names | renamed

    def _module(self, file: _File, n_factories: int) -> Module:
        def imported(name: str, level: int) -> Module | None:
            found = next((path for _, path in _places(name, level, file, self.root) if path.is_file()), None)
            other = None if found is None else _read(found, "")
            return None if other is None else self._module(other, n_factories)

        def callers(name: str) -> Iterable[ast.Call]:
            if n_factories and (file.path, name) not in self.known:
                self.known[file.path, name] = [*self.calls(file.path, name, n_factories - 1)]
            return self.known.get((file.path, name), ())

        return Module(file.tree, imported, callers)


def _renames(node: ast.stmt, names: set[str]) -> TypeGuard[ast.Assign]:
    """Return whether a statement gives a name another one: ``Net = layers.Project``."""
    is_one = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    return is_one and isinstance(node, ast.Assign) and ast.unparse(node.value) in names


def _without_partial(call: ast.Call) -> ast.Call:
    """Return the call that ``partial(Project, 96)`` begins; any other call as it is."""
    if ast.unparse(call.func) in ("partial", "functools.partial") and call.args:
        return ast.Call(call.args[0], call.args[1:], call.keywords)
    return call


def _spread(keyword: ast.keyword, file: _File) -> Iterator[tuple[str, ast.expr]]:
    """Yield a keyword argument, or those that a dict at the top of the file holds: ``Project(**SIZES)``."""
    if keyword.arg is not None:
        yield keyword.arg, keyword.value
        return
    for node in file.tree.body:
        match node, keyword.value:
            case ast.Assign(targets=[ast.Name(id=name)], value=held), ast.Name(id=used) if name == used:
                if isinstance(held, ast.Dict):
                    pairs = zip(held.keys, held.values, strict=True)
                    named = ((getattr(each, "value", None), value) for each, value in pairs)
                    yield from ((each, value) for each, value in named if isinstance(each, str))
                elif isinstance(held, ast.Call) and ast.unparse(held.func) == "dict":
                    yield from ((each.arg, each.value) for each in held.keywords if each.arg)


def _literal(argument: ast.expr, place: Place) -> ast.expr:
    return literal_of(argument, place) or ast.Name(UNKNOWN_NAME)


@dataclass(frozen=True)
class _File:
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


def _is_test(path: Path) -> bool:
    """Return True for a file that pytest or unittest collects by its name or folder. `path` is relative to the root."""
    is_named = path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem == "conftest"
    return is_named or bool({"tests", "test"}.intersection(path.parts[:-1]))


def _rewritten(
    root: Path, word: str, edits_of: Callable[[_File], list[_Edit]], is_kept: Callable[[Path], bool] = lambda _: False
) -> Rewritten:
    """Rewrite the files that have the word and are not kept. A call has two edits, one before and one after it."""
    texts: dict[Path, str] = {}
    n_sites, n_kept, deadline = 0, 0, time.monotonic() + MAX_SCAN_S
    for number, path in enumerate(python_files(root)):
        if number >= MAX_FILES or time.monotonic() > deadline:
            return Rewritten(texts, n_sites, n_kept, is_complete=False)
        file = _read(path, word)
        edits = [] if file is None else edits_of(file)
        n_calls = sum(edit.is_of_call for edit in edits) // 2
        if is_kept(path.relative_to(root)):
            n_kept += n_calls
        elif file is not None and edits:
            texts[path] = _applied(file.data, edits).decode()
            n_sites += n_calls
    return Rewritten(texts, n_sites, n_kept)


def _read(path: Path, word: str) -> _File | None:
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
    return _File(path, data, tree, (0, *(match.end() for match in LINE_END.finditer(data))))


def _applied(data: bytes, edits: list[_Edit]) -> bytes:
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        data = data[: edit.first] + edit.text.encode() + data[edit.last :]
    return data


def _use_edits(file: _File, root: Path, operator: Operator) -> list[_Edit]:
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


def _names(file: _File, root: Path, operator: Operator) -> Iterator[tuple[str, str]]:
    """Yield the names under which the file calls the target, each with the import of its operator."""
    if file.path.resolve() == operator.file.resolve():
        style = import_style(file.path, file.tree)
        yield operator.called, import_statement(file.path, operator.out, operator.name, style)
        return
    for name, base, level in _imported(file, root, operator.file, operator.called):
        yield name, _import_of(base, level, operator)


def _imported(
    file: _File, root: Path, target: Path, called: str, depth: int = MAX_PASSED_ON
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
    module: str, level: int, file: _File, root: Path, target: Path, called: str, depth: int
) -> Iterator[tuple[Path, str]]:
    """Yield the names that an imported module has for `called`, each with the folder that the import is relative to:
    the target's own, or those by which another module passes it on."""
    places = _places(module, level, file, root)
    if found := next((base for base, path in places if path == target), None):
        yield found, called
        return
    base, path = next(((base, path) for base, path in places if depth and path.is_file()), (root, file.path))
    if path != file.path:
        names = _passed_on(path, path.stat().st_mtime_ns, root, target, called, depth - 1)
        yield from ((base, name) for name in names)


def _places(module: str, level: int, file: _File, root: Path) -> list[tuple[Path, Path]]:
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
    file = _read(path, "import")
    names = {} if file is None else {name: None for name, _, _ in _imported(file, root, target, called, depth)}
    renamed = () if file is None else (node.targets[0] for node in file.tree.body if _renames(node, set(names)))
    return tuple(names | {each.id: None for each in renamed if isinstance(each, ast.Name)})


def _import_of(base: Path, level: int, operator: Operator) -> str:
    """Return the operator's import beside one of the target's module from the folder `base`."""
    parts = Path(os.path.relpath(operator.out, base)).parts
    path = ".".join([*(part for part in parts if part not in (".", "..")), operator.name])
    dots = "." * (level + parts.count("..") if level else 0)
    return f"from {dots}{path} import {USE_PREFIX}{operator.name}"


def _is_within(call: ast.Call, file: _File, operator: Operator) -> bool:
    """Check whether the call is in the target's own definition."""
    if file.path.resolve() != operator.file.resolve():
        return False
    node = file.named.get(operator.called)
    return node is not None and node.lineno <= call.lineno <= (node.end_lineno or node.lineno)


def _revert_edits(file: _File, name: str) -> list[_Edit]:
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
