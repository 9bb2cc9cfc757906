"""Selected lines as the text of a function with a pragma, and the call that stands for them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.errors import TargetError
from kernel_lsp.source.python_file import PythonFile
from kernel_lsp.source.selection import OwnUse, Selection

INDENT = "    "
PRAGMA = "# kernel-lsp: "
SIZES = ""
"""Among the known values: the pragma items that give the dims their sizes."""
OWN = "self."


@dataclass(frozen=True)
class Extraction:
    """`function` is its text from the pragma on; `call` the statement that takes the place of the lines
    ``[first_line, last_line]``, with their indentation. `function_line` is where the function goes: above the top-level
    definition that the lines are in. All 1-based. `global_names` are what the lines use of their file."""

    name: str
    function: str
    function_line: int
    call: str
    first_line: int
    last_line: int
    global_names: tuple[str, ...]


def extract(source: PythonFile, selection: Selection, name: str, known: Mapping[str, str]) -> Extraction:
    """The lines as the function `name`.

    `known` has a pragma item without its name (``f32[64, 256]``, ``1e-06``) for each input by local name, and for what
    is ``self.<path>`` by that text. Raises TargetError for an input that is not in it.
    """
    for own in selection.own:
        _known_part(source, own, known)
    parameters = _parameters(source, selection, known)
    body = textwrap.dedent("\n".join(_lines(source, selection, parameters, known)))
    results = ", ".join(selection.outputs)
    if not selection.returns:
        body += f"\nreturn {results}"
    items = [f"{parameter}={known[value]}" for value, parameter in parameters.items()]
    pragma = PRAGMA + ", ".join([*items, *_sizes(items, known)])
    head = f"def {name}({', '.join(parameters.values())}):"
    function = "\n".join([pragma, head, textwrap.indent(body, INDENT)])
    call = f"{name}({', '.join(_as_written(value, selection) for value in parameters)})"
    first = source.lines[selection.first_line - 1]
    indent = first[: len(first) - len(first.lstrip())]
    return Extraction(
        name=name,
        function=function,
        function_line=_function_line(source, selection),
        call=f"{indent}return {call}" if selection.returns else f"{indent}{results} = {call}",
        first_line=selection.first_line,
        last_line=selection.last_line,
        global_names=_global_names(source, selection, set(parameters.values())),
    )


# --- below: inputs


def _known_part(source: PythonFile, own: OwnUse, known: Mapping[str, str]) -> tuple[str, ast.Attribute]:
    """The longest part of what is used that is a tensor or a number. Raises TargetError when there is none."""
    for path, node in reversed(own.nodes):
        if f"{OWN}{path}" in known:
            return f"{OWN}{path}", node
    message = f"'self.{own.path}' is no tensor and no number that a function could be given"
    next_step = "select other lines, or optimize the whole module"
    raise TargetError(message, file=source.file, line=own.nodes[0][1].lineno, next_step=next_step)


def _parameters(source: PythonFile, selection: Selection, known: Mapping[str, str]) -> dict[str, str]:
    """What is passed, by how the lines call it: local names, then what is of `self`; with the parameter's name."""
    for name in selection.inputs:
        if name not in known:
            message = f"nothing says what '{name}' is in these lines"
            next_step = f"select also the line that assigns '{name}'"
            raise TargetError(message, file=source.file, line=selection.first_line, next_step=next_step)
    parameters = {name: name for name in selection.inputs}
    taken = {node.id for s in selection.statements for node in ast.walk(s) if isinstance(node, ast.Name)}
    for own in selection.own:
        value, _ = _known_part(source, own, known)
        if value not in parameters:
            parameter = value.rpartition(".")[2]
            if parameter in taken or parameter in parameters.values():
                parameter = value.replace(".", "_")
            parameters[value] = parameter
    return parameters


def _sizes(items: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """The sizes of those dims that the items name."""
    names = set(re.findall(r"[A-Za-z_]\w*", " ".join(item.partition("[")[2] for item in items)))
    given = [size for size in known.get(SIZES, "").split(", ") if size]
    return [size for size in given if size.partition("=")[0] in names]


def _as_written(value: str, selection: Selection) -> str:
    """What is known as ``self.<path>``, by the name that the method has for it."""
    return f"{selection.own_name}.{value.removeprefix(OWN)}" if value.startswith(OWN) else value


# --- below: texts


def _lines(
    source: PythonFile, selection: Selection, parameters: Mapping[str, str], known: Mapping[str, str]
) -> Sequence[str]:
    """The selected lines with parameters in place of what is of `self`."""
    lines = list(source.lines[selection.first_line - 1 : selection.last_line])
    parts = [_known_part(source, own, known) for own in selection.own]
    for value, node in sorted(parts, key=lambda part: (part[1].lineno, part[1].col_offset), reverse=True):
        if node.end_lineno != node.lineno:
            message = f"'{value}' is written over several lines"
            raise TargetError(message, file=source.file, line=node.lineno, next_step="write it in one line")
        index = node.lineno - selection.first_line
        encoded = lines[index].encode()
        changed = encoded[: node.col_offset] + parameters[value].encode() + encoded[node.end_col_offset :]
        lines[index] = changed.decode()
    return lines


def _function_line(source: PythonFile, selection: Selection) -> int:
    """Above the top-level definition and the comments and decorators that belong to it."""
    top = next(node for node in source.tree.body if any(inner is selection.function for inner in ast.walk(node)))
    first = min([top.lineno, *(decorator.lineno for decorator in getattr(top, "decorator_list", ()))])
    while first > 1 and source.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def _global_names(source: PythonFile, selection: Selection, parameters: set[str]) -> tuple[str, ...]:
    """Names that the file binds at its top and the lines use."""
    used = {
        node.id
        for statement in selection.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return tuple(sorted((used & _bound_at_top(source.tree)) - parameters))


def _bound_at_top(tree: ast.Module) -> set[str]:
    bound: set[str] = set()
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        else:
            stack += ast.iter_child_nodes(node)
    return bound
