"""Print an operation's contract as a Python function that a reviewer can compare with the launch plan."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import TensorParameter
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText, dtype_and_shape
from kernel_lsp.export.python.python_text import (
    bracketed,
    indented,
    literal,
    may_divide_by_zero,
    python_number,
    string_literal,
    tuple_text,
)


def contract_function(text: OperationText) -> list[str]:
    """Print inputs, results and conditions, each with the plan's own text next to the Python that checks it."""
    results = text.operation.outputs
    dims = [dim for tensor in (*text.inputs, *text.returned) for dim in tensor.dims]
    numbers = [f"{string_literal(a.declaration)}: {a.name}" for a in text.arguments if not a.is_tensor]
    inputs = [f"{_label(text, tensor)}: ({text.rename(tensor.name)}, {_shape(text, tensor)})" for tensor in text.inputs]
    body = [
        *text.bindings([*dims, *text.conditions]),
        f"return {RUNTIME}.Contract(",
        *indented(literal("inputs={", inputs, "},", depth=2)),
        *indented(literal("results={", _types(text, results), "},", depth=2)),
        *_unless_empty("where={", _conditions(text)),
        *_unless_empty("numbers={", numbers),
        *_unless_empty("kept={", _types(text, text.operation.kept)),
        ")",
    ]
    declarations = [argument.declaration for argument in text.arguments]
    definition = bracketed(f"def _{text.name}_contract(", declarations, f") -> {RUNTIME}.Contract:")
    return [*definition, *indented(body)]


def _types(text: OperationText, tensors: Iterable[TensorParameter]) -> list[str]:
    return [f"{_label(text, tensor)}: {_shape(text, tensor)}" for tensor in tensors]


def _unless_empty(before: str, items: list[str]) -> list[str]:
    return indented(literal(before, items, "},", depth=2)) if items else []


def _label(text: OperationText, tensor: TensorParameter) -> str:
    return string_literal(f"{text.rename(tensor.name)}: {dtype_and_shape(tensor.dtype, tensor.dims)}")


def _shape(text: OperationText, tensor: TensorParameter) -> str:
    return tuple_text([_python(text, dim) for dim in tensor.dims]) if tensor.dims else "()"


def _conditions(text: OperationText) -> list[str]:
    """Print the scalars that the kernels have as constants, the plan's `where:` lines, and the bound on sizes."""
    fixed = [_fixed(argument.name, argument.fixed) for argument in text.arguments if argument.fixed is not None]
    return [*fixed, *(_where(text, condition) for condition in text.conditions)]


def _fixed(name: str, value: float | int | bool) -> str:
    if isinstance(value, bool):
        return f"{string_literal(f'{name} is {value}')}: {'' if value else 'not '}{name}"
    condition = f"{name} == {python_number(value)}"
    return f"{string_literal(condition)}: {condition}"


def _where(text: OperationText, condition: Expression) -> str:
    python = _python(text, condition)
    numbers = {argument.name for argument in text.arguments if not argument.is_tensor}
    if may_divide_by_zero(condition) or not numbers.isdisjoint(map(text.rename, free_names(condition))):
        python = f"{RUNTIME}.holds(lambda: {python})"
    return f"{string_literal(str(condition))}: {python}"


def _python(text: OperationText, expression: Expression) -> str:
    return text.python(expression).replace("ceil_div(", f"{RUNTIME}.ceil_div(")
