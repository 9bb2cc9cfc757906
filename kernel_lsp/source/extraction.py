"""Extract selected lines as a function with a pragma, and the call that replaces them."""

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
"""Key among the known values for the pragma items that give the dims their sizes."""
OWN = "self."


@dataclass(frozen=True)
class Extraction:
    """`function` is the text, starting with the pragma; `call` is the statement that replaces the lines ``[first_line,
    last_line]``, indented as they are. `function_line` is the insertion line: above the top-level definition that
    contains the lines. All are 1-based. `global_names` are names of the file that the lines use."""

    name: str
    function: str
    function_line: int
    call: str
    first_line: int
    last_line: int
    global_names: tuple[str, ...]


def extract(source: PythonFile, selection: Selection, name: str, known: Mapping[str, str]) -> Extraction:
    """Extract the lines as the function `name`.

    `known` has an unnamed pragma item (``f32[64, 256]``, ``1e-06``) for each input by local name, and for
    ``self.<path>`` by that text. Raises TargetError for an unknown input.
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


def _known_part(source: PythonFile, own: OwnUse, known: Mapping[str, str]) -> tuple[str, ast.Attribute]:
    """Return the longest used prefix that is a tensor or a number. Raises TargetError without one."""
    for path, node in reversed(own.nodes):
        if f"{OWN}{path}" in known:
            return f"{OWN}{path}", node
    message = f"'self.{own.path}' is no tensor and no number that a function could be given"
    next_step = "select other lines, or optimize the whole module"
    raise TargetError(message, file=source.file, line=own.nodes[0][1].lineno, next_step=next_step)


def _parameters(source: PythonFile, selection: Selection, known: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments by their spelling in the lines, with parameter names: local names, then attributes of
    `self`."""
    for name in selection.inputs:
        if name not in known:
            message = f"unknown value of '{name}' in these lines"
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
    """Return the sizes of the dims named in the items."""
    names = set(re.findall(r"[A-Za-z_]\w*", " ".join(item.partition("[")[2] for item in items)))
    given = [size for size in known.get(SIZES, "").split(", ") if size]
    return [size for size in given if size.partition("=")[0] in names]


def _as_written(value: str, selection: Selection) -> str:
    """Replace ``self`` in ``self.<path>`` by the method's own name for it."""
    return f"{selection.own_name}.{value.removeprefix(OWN)}" if value.startswith(OWN) else value


def _lines(
    source: PythonFile, selection: Selection, parameters: Mapping[str, str], known: Mapping[str, str]
) -> Sequence[str]:
    """Return the selected lines, with attributes of `self` replaced by parameters."""
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
    """Return the line above the top-level definition with its comments and decorators."""
    top = next(node for node in source.tree.body if any(inner is selection.function for inner in ast.walk(node)))
    first = min([top.lineno, *(decorator.lineno for decorator in getattr(top, "decorator_list", ()))])
    while first > 1 and source.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def _global_names(source: PythonFile, selection: Selection, parameters: set[str]) -> tuple[str, ...]:
    """Return the names bound at the file's top level that the lines use."""
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
