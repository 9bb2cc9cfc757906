"""Propose the call that constructs an argument that is an object, e.g. ``GPTConfig()``, where its class can be read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from kernel_lsp.source.inference.interpreter import Interpreter
from kernel_lsp.source.inference.sequences import kind_of
from kernel_lsp.source.inference.values import fields_of
from kernel_lsp.source.pragma import CONSTRUCTION
from kernel_lsp.source.python_file import FunctionNode, PythonFile, parameters_of

Guess = Callable[[str, str], str]
"""Return an example argument by its name and its kind of annotation."""


def construction(
    interpreter: Interpreter,
    source: PythonFile,
    constructor: FunctionNode,
    name: str,
    annotation: ast.expr | None,
    guess: Guess,
) -> str | None:
    """Return the call for an argument of a constructor; None where its class is not known. Without an annotation it is
    the file's dataclass that has all attributes that the constructor reads."""
    if annotation is None:
        node = next(_dataclasses_with(_reads(constructor, name), source), None)
    else:
        node = interpreter.class_of(annotation)
    if node is None:
        return None
    called = node.name if annotation is None else ast.unparse(annotation)
    text = f"{called}({', '.join(f'{each}={guess(each, kind)}' for each, kind in _required(interpreter, node))})"
    return text if CONSTRUCTION.fullmatch(text) else None


def _required(interpreter: Interpreter, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a class without a default, with their kinds."""
    constructor = next((each for each in node.body if isinstance(each, FunctionNode) and each.name == "__init__"), None)
    if constructor is not None:
        parameters = parameters_of(constructor, of_class=True)
        yield from ((p.name, kind_of(p.annotation)) for p in parameters if not p.has_default)
    else:
        fields = [field for field in interpreter.fields(node) if field.default is None]
        yield from ((field.name, kind_of(field.annotation)) for field in fields)


def _reads(constructor: FunctionNode, name: str) -> set[str]:
    found = set()
    for node in ast.walk(constructor):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute) if owner == name:
                found.add(attribute)
    return found


def _dataclasses_with(attributes: set[str], source: PythonFile) -> Iterator[ast.ClassDef]:
    for node in source.tree.body:
        if (
            isinstance(node, ast.ClassDef)
            and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
            and attributes
            and attributes <= {field.name for field in fields_of(node)}
        ):
            yield node
