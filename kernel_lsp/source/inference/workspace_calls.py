"""Find the calls of a target in the other files of a workspace, with the values that their text gives."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from kernel_lsp.source.inference.call_arguments import Module, Place, literal_of
from kernel_lsp.source.python_file import FunctionNode
from kernel_lsp.source.workspace_files import (
    MAX_FILES,
    MAX_PASSED_ON,
    MAX_SCAN_S,
    File,
    imported_names,
    is_test,
    module_places,
    python_files,
    read_file,
    renames,
)

MAX_FACTORIES = 2
"""Maximum factory functions between a call and the values that it is given."""
UNKNOWN_NAME = "<unknown>"
"""Name of what a call gives and its text does not say."""


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
                id(each): node
                for node in ast.walk(file.tree)
                if isinstance(node, FunctionNode)
                for each in ast.walk(node)
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

    def _callers_of(self, target: Path, called: str) -> Iterator[tuple[File, set[str]]]:
        """Yield the other files that may call `called`, each with its names there. Files that give it another name are
        read first, and then those that have that name alone."""
        paths = [path for path in islice(python_files(self.root), MAX_FILES) if path != target]
        waiting, done = [called.rpartition(".")[2]], set[Path]()
        for word in waiting:
            for path in paths:
                is_read = path not in done and not is_test(path.relative_to(self.root))
                file = read_file(path, word) if is_read and time.monotonic() < self.deadline else None
                if file is None:
                    continue
                done.add(path)
                names = {name for name, _, _ in imported_names(file, self.root, target, called)}
                renamed = {ast.unparse(node.targets[0]) for node in file.tree.body if renames(node, names)}
                waiting += sorted(renamed - {*waiting})[:MAX_PASSED_ON]
                yield file, names | renamed

    def _module(self, file: File, n_factories: int) -> Module:
        def imported(name: str, level: int) -> Module | None:
            found = next((path for _, path in module_places(name, level, file, self.root) if path.is_file()), None)
            other = None if found is None else read_file(found, "")
            return None if other is None else self._module(other, n_factories)

        def callers(name: str) -> Iterable[ast.Call]:
            if n_factories and (file.path, name) not in self.known:
                self.known[file.path, name] = [*self.calls(file.path, name, n_factories - 1)]
            return self.known.get((file.path, name), ())

        return Module(file.tree, imported, callers)


def _without_partial(call: ast.Call) -> ast.Call:
    """Return the call that ``partial(Project, 96)`` begins; any other call as it is."""
    if ast.unparse(call.func) in ("partial", "functools.partial") and call.args:
        return ast.Call(call.args[0], call.args[1:], call.keywords)
    return call


def _spread(keyword: ast.keyword, file: File) -> Iterator[tuple[str, ast.expr]]:
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
