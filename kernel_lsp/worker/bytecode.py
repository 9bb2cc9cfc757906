"""The program `bytecode`: compile on several cores what a capture will import, where torch's files have no bytecode.

One process alone compiles two thousand modules in 7 s while it imports them (two cores, torch 2.13). This program
reads the imports in each module's bytecode. So it compiles only what is needed, in about the order of import, one
step ahead.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import opcode
import os
import selectors
import sys
from collections.abc import Iterator
from types import CodeType
from typing import BinaryIO

ROOTS = ("torch", "torch._dynamo", "torch.export._trace")
PACKAGES = frozenset(
    (
        *("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "numpy", "filelock", "tqdm"),
        "typing_extensions",
    )
)
"""Packages that torch imports, itself included, beyond the standard library. Other libraries that work with torch are
compiled when they are imported."""
MAX_PROCESSES = 8
IMPORT_NAME, IMPORT_FROM, EXTENDED_ARG, LOAD_CONST = (
    opcode.opmap[name] for name in ("IMPORT_NAME", "IMPORT_FROM", "EXTENDED_ARG", "LOAD_CONST")
)


def main(arguments: list[str]) -> int:
    """Compile, then create the empty file MARKER as the sign of completion: ``[MARKER]``."""
    found = {name: _file_of(name) for name in ROOTS}
    helpers = [_Helper() for _ in range(max(1, min(MAX_PROCESSES, (os.cpu_count() or 1) - 1)))]
    idle, waiting = list(helpers), [(name, path) for name, path in found.items() if path]
    with selectors.DefaultSelector() as selector:
        for helper in helpers:
            selector.register(helper.answers, selectors.EVENT_READ, helper)
        while waiting or len(idle) < len(helpers):
            while idle and waiting:
                idle.pop().ask(*waiting.pop())
            for key, _ in selector.select():
                for name in key.data.imported():
                    path = None if name in found else _file_of(name)
                    found[name] = path or ""
                    if path:
                        waiting.append((name, path))
                idle.append(key.data)
    with open(arguments[0], "w"):
        return 0


class _Helper:
    """A process that compiles one module at a time."""

    def __init__(self) -> None:
        work, self._requests = os.pipe()
        self._answers, said = os.pipe()
        if os.fork() == 0:
            os.close(self._requests)
            with open(work, "rb") as requests, open(said, "wb", buffering=0) as answers:
                _compile_all(requests, answers)
            os._exit(0)
        os.close(work)
        os.close(said)
        self.answers = os.fdopen(self._answers, "rb")

    def ask(self, name: str, path: str) -> None:
        os.write(self._requests, f"{name}\t{path}\n".encode())

    def imported(self) -> list[str]:
        """Return the answer to `ask`: candidate module names. Empty when the process has ended."""
        return self.answers.readline().decode().split()


def _compile_all(requests: BinaryIO, answers: BinaryIO) -> None:
    for line in requests:
        name, path = line.decode().rstrip("\n").split("\t")
        names: list[str] = []
        with contextlib.suppress(Exception):  # a broken file raises again in the process that imports it
            names = list(dict.fromkeys(_compiled(name, path)))
        answers.write((" ".join(names) + "\n").encode())


def _compiled(name: str, path: str) -> Iterator[str]:
    """Compile a module that has no bytecode, cache it where Python looks for it, and yield what it may import."""
    code = importlib.machinery.SourceFileLoader(name, path).get_code(name)
    assert code is not None, "only loaders of other kinds have none"
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    yield name.rpartition(".")[0]
    before, start = [(0, 0), (0, 0)], ""
    for operation, argument in _instructions(code):
        if operation == IMPORT_NAME:
            loads, level = before[-2]
            level = code.co_consts[level] if loads == LOAD_CONST else level  # a small number needs no constant
            start = _absolute(code.co_names[argument], level, package)
            yield start
        elif operation == IMPORT_FROM:
            yield f"{start}.{code.co_names[argument]}"
        before = [before[-1], (operation, argument)]


def _instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the opcode and argument of each instruction of the module's own code. Functions import later."""
    argument = 0
    for position in range(0, len(code.co_code), 2):
        operation, argument = code.co_code[position], argument << 8 | code.co_code[position + 1]
        if operation != EXTENDED_ARG:
            yield operation, argument
            argument = 0


def _absolute(name: str, level: int, package: str) -> str:
    """Resolve a name as `importlib.util.resolve_name` does, with the number of dots given."""
    if level == 0:
        return name
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def _file_of(name: str) -> str:
    """Return the source file of a module, or an empty string. Imports nothing."""
    top, *rest = name.split(".")
    if top not in PACKAGES and top not in getattr(sys, "stdlib_module_names", ()):
        return ""
    base = _top(top)
    if not rest:
        return (
            os.path.join(base, "__init__.py") if "__init__.py" in _entries(base) else base if base[-3:] == ".py" else ""
        )
    folder = os.path.join(base, *rest[:-1])
    if f"{rest[-1]}.py" in _entries(folder):
        return os.path.join(folder, f"{rest[-1]}.py")
    if rest[-1] in _entries(folder) and "__init__.py" in _entries(os.path.join(folder, rest[-1])):
        return os.path.join(folder, rest[-1], "__init__.py")
    return ""


@functools.cache
def _top(name: str) -> str:
    """Return the folder of a package, or the file of a single module."""
    spec = importlib.machinery.PathFinder.find_spec(name)
    if spec is None:
        return ""
    return next(iter(spec.submodule_search_locations or [spec.origin or ""]), "")


@functools.cache
def _entries(folder: str) -> frozenset[str]:
    """List the names in a folder, cached."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()
