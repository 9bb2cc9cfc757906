"""What an operation takes, as Python functions, and its results where there is no data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.core.expression import Expression
from kernel_lsp.core.plan import TensorParameter
from kernel_lsp.export.python.operation_text import OperationText, dtype_and_shape
from kernel_lsp.export.python.python_text import (
    bracketed,
    differs,
    indented,
    may_divide_by_zero,
    negated,
    python_number,
    string_literal,
    tuple_text,
)


def mismatch_function(text: OperationText) -> list[str]:
    """Dtypes, ranks and dims: what decides whether the results have the plan's shapes."""
    body = ['"""Why dtypes or shapes are not those of the plan; empty when they are."""']
    for argument in text.arguments:
        if not argument.is_tensor:
            body += [f"if not isinstance({argument.name}, _NUMBERS):"]
            body += indented([f'return "{argument.name} is not a number"'])
        if argument.fixed is not None:
            body += [f"if {differs(argument.name, argument.fixed)}:"]
            body += indented([f'return "{argument.name} is not {python_number(argument.fixed)}"'])
    for tensor in text.inputs:
        dtype = f"torch.{tensor.dtype.torch_name}"
        body += [f"if not _is_tensor({text.rename(tensor.name)}, {dtype}, {len(tensor.dims)}):"]
        body += indented([f'return "{text.rename(tensor.name)} is not a non-empty {_type_text(tensor)}"'])
    checks = [check for tensor in text.inputs for check in text.dim_checks(tensor)]
    body += text.bindings(checked for _, checked in checks)
    for condition, tensor in _shape_conditions(text, checks):
        body += [f"if {condition}:"]
        body += indented([f'return "{text.rename(tensor.name)} is not {_type_text(tensor)}"'])
    return [*text.define("_", "_mismatch", "str"), *indented([*body, 'return ""'])]


def outside_function(text: OperationText) -> list[str]:
    """The whole contract: GPU, dtypes and shapes, the plan's `where:` lines, and what kernels can count."""
    inputs = [text.rename(tensor.name) for tensor in text.inputs]
    body = ['"""Why the kernels cannot take these inputs; empty when they can."""']
    body += bracketed(f"reason = _{text.name}_mismatch(", text.argument_names, ")", depth=1)
    body += bracketed("reason = reason or _not_on_one_gpu(", inputs, ")", depth=1)
    body += ["if reason:", *indented(["return reason"])]
    body += text.bindings(text.conditions)
    for condition in text.conditions:
        body += _where(text, condition)
    return [*text.define("_", "_outside", "str"), *indented([*body, 'return ""'])]


def fake_function(text: OperationText, mismatch: Sequence[str]) -> list[str]:
    """The results' shapes and dtypes; `mismatch` is what to return outside the plan's shapes."""
    results = text.operation.results
    body = ['"""Results without data, for tracing and `torch.compile`."""']
    body += bracketed(f"if _{text.name}_mismatch(", text.argument_names, "):", depth=1)
    body += indented(mismatch)
    body += text.bindings(dim for result in results for dim in result.dims)
    device = f"{text.rename(text.inputs[0].name)}.device"
    empties = [text.empty(result, device) for result in results]
    if len(empties) == 1:
        body += [f"return {empties[0]}"]
    else:
        body += ["return (", *indented(f"{empty}," for empty in empties), ")"]
    return [*text.define("_", "_fake", text.returns), *indented(body)]


# --- below: conditions


def _where(text: OperationText, condition: Expression) -> list[str]:
    refused = indented([f"return {string_literal(f'{condition} does not hold')}"])
    if not may_divide_by_zero(condition):
        return [f"if {negated(condition, text.rename)}:", *refused]
    return [
        "try:",
        *indented([f"holds = bool({text.python(condition)})"]),
        "except ZeroDivisionError:",
        *indented(["holds = False"]),
        "if not holds:",
        *refused,
    ]


def _type_text(tensor: TensorParameter) -> str:
    return dtype_and_shape(tensor.dtype, tensor.dims)


def _shape_conditions(
    text: OperationText, checks: Sequence[tuple[tuple[TensorParameter, int], Expression]]
) -> Iterable[tuple[str, TensorParameter]]:
    """Python that is true where a tensor's shape is not the plan's."""
    for tensor in text.inputs:
        own = [(position, dim) for (of, position), dim in checks if of is tensor]
        name = text.rename(tensor.name)
        if own and len(own) == len(tensor.dims):
            yield f"{name}.shape != {tuple_text([text.python(dim) for _, dim in own])}", tensor
        else:
            for position, dim in own:
                yield f"{name}.shape[{position}] != {text.python(dim)}", tensor
