"""Index the functions of a file by their names, and by the names that they call and assign, from their text alone."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from kernel_lsp.rules.pytorch.program.parsing import ParsedModule

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
MAX_LINES = 2_000
"""Maximum lines of a file whose calls are followed. An edit checks every function anew that follows one: 0.1 s here."""


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """A function at the top level of a file, a method of a class there, or the statements of the top level itself,
    whose name is empty. `owner` is the class of a method."""

    name: str
    node: FunctionNode | ast.Module
    owner: ast.ClassDef | None


@dataclass(eq=False)
class Functions:
    """The functions and classes of one file. None are listed in files that are too long to follow their calls."""

    by_node: dict[int, Function] = field(default_factory=dict)
    named: dict[str, list[Function]] = field(default_factory=dict)
    calling: dict[str, list[Function]] = field(default_factory=dict)
    """Functions by the names that they call."""
    storing: dict[str, list[Function]] = field(default_factory=dict)
    """Functions by the attributes that they assign."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


def functions_of_file(module: ParsedModule) -> Functions:
    """Index the top level of a file, its functions and the methods of its classes."""
    found = Functions()
    if len(module.lines) > MAX_LINES:
        return found
    rest: list[str] = []
    end = 0
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | FunctionNode):
            continue
        rest += module.lines[end : node.lineno - 1]
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef):
            found.classes[node.name] = node
            for child in node.body:
                if isinstance(child, FunctionNode):
                    _add(found, Function(child.name, child, node), _lines(child, module))
        else:
            _add(found, Function(node.name, node, None), _lines(node, module))
    _add(found, Function("", module.tree, None), (*rest, *module.lines[end:]))
    return found


def _lines(node: FunctionNode, module: ParsedModule) -> tuple[str, ...]:
    return module.lines[node.lineno - 1 : node.end_lineno]


def _add(found: Functions, function: Function, lines: tuple[str, ...]) -> None:
    found.by_node[id(function.node)] = function
    called, stored = _outline(lines)
    for index, names in ((found.named, (function.name,)), (found.calling, called), (found.storing, stored)):
        for name in names:
            index.setdefault(name, []).append(function)


def _outline(lines: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the names that the lines call, and the attributes that they assign."""
    text = "\n".join(lines)
    targets = (line.partition("=")[0] for line in lines if "=" in line and "." in line)
    stored = {name for target in targets for name in _ATTRIBUTE.findall(target)}
    return set(_CALLED.findall(text)), stored


_CALLED = re.compile(r"(\w+)\s*\(")
_ATTRIBUTE = re.compile(r"\.(\w+)")
