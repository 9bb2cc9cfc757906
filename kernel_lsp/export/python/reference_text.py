"""The captured PyTorch reference as a function of the operator file."""

from __future__ import annotations

import ast
import re
import textwrap

from kernel_lsp.core.expression import Constant, Number
from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.errors import InternalError
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText, dtype_and_shape
from kernel_lsp.export.python.python_text import (
    INDENT,
    LINE_LENGTH,
    bracketed,
    call,
    differs,
    indented,
    python_identifier,
    python_number,
    string_literal,
)


def reference_function(task: Task, operation: OperationText, plan: str) -> list[str]:
    """Print ``def <name>_reference(...)`` with annotations. It refuses other values than the captured ones where its
    body has them as constants: numbers that it took, and sizes, e.g. a scale of ``1 / sqrt(D)``. Sizes that the `plan`
    of the file has, too, are not printed again."""
    function = _parsed(task)
    body: list[str] = []
    for name, value in unread_numbers(task, operation).items():
        message = f"{task.name} was captured with {name}={python_number(value)}; capture it again"
        body += _refusal(differs(name, value), message)
    types = {
        python_identifier(argument.name, operation.reserved): dtype_and_shape(argument.type.dtype, argument.type.shape)
        for argument in task.tensors
        if _holds_sizes(argument)
    }
    decorator = []
    if types and plan and types == fixed_sizes(operation):
        decorator = [f"@{RUNTIME}.captured_with({plan})"]
    elif types:
        body += _joined("types", "; ".join(f"{name}: {type_}" for name, type_ in types.items()))
        body += call(f"{RUNTIME}.require(", [string_literal(task.name), "types"], list(types), depth=1)
    for original, renamed in _renamed(task, operation):
        body.append(f"{original} = {renamed}")
    lines = textwrap.dedent("\n".join(_body_lines(task, function))).splitlines()
    head = ['"""The PyTorch code that the kernels replace, as it was captured."""']
    return [*decorator, *operation.define("_reference", operation.result_annotation, head, [*body, *lines])]


def fixed_sizes(operation: OperationText) -> dict[str, str]:
    """Return the types of the inputs that the plan fixes sizes of, by name."""
    return {
        operation.rename(tensor.name): dtype_and_shape(tensor.dtype, tensor.dims)
        for tensor in operation.inputs
        if any(isinstance(dim, Constant) and dim.value > 1 for dim in tensor.dims)
    }


def unread_numbers(task: Task, operation: OperationText) -> dict[str, Number]:
    """Return the numbers that the reference takes but has as constants, by their Python names."""
    used = {node.id for node in ast.walk(_parsed(task)) if isinstance(node, ast.Name)}
    scalars = (argument for argument in task.arguments if isinstance(argument, TaskScalar))
    return {python_identifier(a.name, operation.reserved): a.value for a in scalars if a.name not in used}


def _parsed(task: Task) -> ast.FunctionDef:
    tree = ast.parse(task.reference_source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == f"{task.name}_reference":
            return node
    raise InternalError(f"the task's reference has no function {task.name}_reference")


def _joined(name: str, text: str) -> list[str]:
    """Print ``name = "text"``, a long text as adjacent literals."""
    if len(one := f"{name} = {string_literal(text)}") <= LINE_LENGTH - len(INDENT):
        return [one]
    pieces = textwrap.wrap(text, LINE_LENGTH - 2 * len(INDENT) - 2, break_long_words=False, drop_whitespace=False)
    return [f"{name} = (", *indented(map(string_literal, pieces)), ")"]


def _holds_sizes(argument: TaskTensor) -> bool:
    """Return True if the capture fixes sizes of the tensor. Every capture fixes sizes of one, and code seldom computes
    with them."""
    return any(size.isdigit() and int(size) > 1 for size in argument.type.shape)


def _refusal(condition: str, message: str) -> list[str]:
    raising = bracketed("raise ValueError(", [string_literal(message)], ")", depth=2)
    return [f"if {condition}:", *indented(raising)]


def _renamed(task: Task, operation: OperationText) -> list[tuple[str, str]]:
    """Return the arguments whose names the operator had to change."""
    pairs = [(a.name, python_identifier(a.name, operation.reserved)) for a in task.arguments]
    return [(original, renamed) for original, renamed in pairs if original != renamed]


def _body_lines(task: Task, function: ast.FunctionDef) -> list[str]:
    lines = task.reference_source.splitlines()
    first, last = function.body[0], function.body[-1]
    if first.lineno == function.lineno or last.end_lineno is None:
        raise InternalError("the task's reference is a function on one line")
    body = [line.rstrip() for line in lines[first.lineno - 1 : last.end_lineno]]
    quoted = [re.sub(r"'([^'\"\\]*)'", r'"\1"', line) for line in body]
    return [wrapped for line in quoted for wrapped in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    """Wrap a line that is too long at its last outermost bracket, where it ends with one."""
    depth = (len(line) - len(line.lstrip())) // len(INDENT)
    opening = _opening_of_last_bracket(line)
    if len(line) <= LINE_LENGTH or opening < 0:
        return [line]
    items = _split_at_commas(line[opening + 1 : -1])
    return indented(bracketed(line[: opening + 1].lstrip(), items, line[-1], depth), depth)


def _opening_of_last_bracket(line: str) -> int:
    """Return the position of the bracket that the line's last character closes; -1 when it closes none."""
    depth = 0
    if not line.endswith((")", "]", "}")):
        return -1
    for position in range(len(line) - 1, -1, -1):
        depth += (line[position] in ")]}") - (line[position] in "([{")
        if depth == 0:
            return position
    return -1


def _split_at_commas(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            items.append(text[start:position].strip())
            start = position + 1
    return [*items, text[start:].strip()]
