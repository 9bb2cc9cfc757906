"""Find what the file's other modules construct a class with and call it with, e.g. a norm in a block of a model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kernel_lsp.source.inference.arrays import Array
from kernel_lsp.source.inference.interpreter import Interpreter
from kernel_lsp.source.inference.values import Instance, Scope
from kernel_lsp.source.python_file import FunctionNode, Parameter, PythonFile, parameters_of

MAX_CLASSES = 40
"""Maximum classes of a file that are constructed in search of a caller."""
N_READINGS = 2
"""Readings of a caller: a rank that a later line fixes is that of the tensor above it."""

Called = Callable[[str, Sequence[str], Sequence[Parameter]], Mapping[str, str]]
"""Return the arguments of the first call of a class that gives all missing ones."""


@dataclass(frozen=True)
class Use:
    """One construction of a class: its arguments that are numbers or strings, and the ranks of what its `forward`
    gets."""

    arguments: Mapping[str, str]
    ranks: Mapping[str, int]


def use_of(source: PythonFile, owner: ast.ClassDef, missing: Sequence[str], called: Called) -> Use | None:
    """Return the first use of a class that gives all missing arguments; None without one. The constructing module has
    its arguments from calls and defaults alone, never from examples."""
    for root, given in _constructible(source, owner, called):
        interpreter = Interpreter(source, lambda _node, _name: None)
        arguments = {name: interpreter.value(ast.parse(text, mode="eval").body, {}) for name, text in given.items()}
        with suppress(RecursionError):
            _read(interpreter, source, root, arguments)
        for instance, values in interpreter.constructed:
            texts = {name: repr(v) for name, v in values.items() if isinstance(v, bool | int | float | str)}
            if instance.node is owner and all(name in texts for name in missing):
                return Use(texts, _ranks(interpreter, instance))
    return None


def _constructible(
    source: PythonFile, owner: ast.ClassDef, called: Called
) -> Iterator[tuple[ast.ClassDef, Mapping[str, str]]]:
    """Yield the other classes whose arguments are known, the last of the file first: it holds the others."""
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef) and node is not owner]
    for node in classes[-MAX_CLASSES:][::-1]:
        constructor = source.inherited(node, "__init__")
        if not isinstance(constructor, FunctionNode):
            continue
        parameters = parameters_of(constructor, of_class=True)
        required = [parameter for parameter in parameters if not parameter.has_default]
        given = called(node.name, [parameter.name for parameter in parameters], required)
        if given or not required:
            yield node, given


def _read(interpreter: Interpreter, source: PythonFile, root: ast.ClassDef, given: Scope) -> None:
    """Construct a module and follow its `forward` with tensors of unknown shape."""
    instance = interpreter.construct(root, given)
    forward = source.inherited(root, "forward")
    if isinstance(forward, FunctionNode):
        names = [each.arg for each in (*forward.args.posonlyargs, *forward.args.args)]
        inputs = {p.name: Array() for p in parameters_of(forward, of_class=True) if not p.has_default}
        scope = interpreter.defaults(forward) | inputs | dict.fromkeys(names[:1], instance)
        for _ in range(N_READINGS):
            interpreter.run(forward, dict(scope))


def _ranks(interpreter: Interpreter, instance: Instance) -> dict[str, int]:
    given = [values for called, values in interpreter.called if called is instance]
    arrays = {name: value for values in given for name, value in values.items() if isinstance(value, Array)}
    return {name: array.known_rank for name, array in arrays.items() if array.known_rank is not None}
