"""Print the steps of an operation as a Python function: allocate, fill, launch, call vendor libraries, return."""

from __future__ import annotations

from kernel_lsp.core.expression import Expression
from kernel_lsp.core.plan import Fill, Launch, LibraryArgument, LibraryStep, TensorParameter
from kernel_lsp.export.python.launch_text import launch_lines
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText, step_comment
from kernel_lsp.export.python.python_text import (
    INDENT,
    LINE_LENGTH,
    bracketed,
    indented,
    returned,
    tuple_text,
    unpacked,
)
from kernel_lsp.plan.step_parts import argument_expressions, launch_numbers


def steps_function(text: OperationText) -> list[str]:
    """Print the steps in the plan's order, each launch below its line of the plan."""
    inputs = [text.rename(tensor.name) for tensor in text.inputs]
    allocated = text.allocated()
    depth = 2 if text.library_functions else 1
    lines = text.bindings([*(dim for tensor in allocated for dim in tensor.dims), *_step_expressions(text)])
    lines += _allocations(text, allocated, f"{inputs[0]}.device")
    for step in text.operation.steps:
        match step:
            case Fill(tensor, value):
                lines += [f"{text.rename(tensor)}.fill_({text.python(value)})"]
            case Launch():
                lines += launch_lines(text, step, depth)
            case LibraryStep():
                lines += _library(text, step, depth)
    lines += returned([text.rename(result.name) for result in text.operation.outputs], depth=depth)
    if text.library_functions:
        lines = ['with torch.autocast("cuda", enabled=False):', *indented(lines)]
    return text.define("_", "_steps", text.returns, lines, first=f"run: {RUNTIME}.Run")


def _allocations(text: OperationText, tensors: list[TensorParameter], device: str) -> list[str]:
    """Print one line for gradients that have the type of their input, and one for all others of one type and shape."""
    inputs = {f"grad_{tensor.name}": (tensor.dtype, tensor.dims) for tensor in text.inputs}
    alike = [tensor for tensor in tensors if inputs.get(tensor.name) == (tensor.dtype, tensor.dims)]
    lines = _like_inputs([(text.rename(t.name), text.rename(t.name.removeprefix("grad_"))) for t in alike])
    groups: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor not in alike:
            groups.setdefault(text.empty(tensor, device), []).append(text.rename(tensor.name))
    for made, names in groups.items():
        together = unpacked(names, f"({made} for _ in range({len(names)}))", 2)
        lines += together if len(names) > 1 and len(together) == 1 else [f"{name} = {made}" for name in names]
    return lines


def _like_inputs(pairs: list[tuple[str, str]]) -> list[str]:
    """Print the allocations of gradients with the types of their inputs, as many to a line as fit."""
    lines: list[str] = []
    group: list[tuple[str, str]] = []
    for pair in pairs:
        if group and len(_like([*group, pair])) + 2 * len(INDENT) > LINE_LENGTH:
            lines.append(_like(group))
            group = []
        group.append(pair)
    return [*lines, _like(group)] if group else lines


def _like(pairs: list[tuple[str, str]]) -> str:
    names, originals = [name for name, _ in pairs], [original for _, original in pairs]
    if len(pairs) == 1:
        return f"{names[0]} = torch.empty_like({originals[0]})"
    return f"{', '.join(names)} = map(torch.empty_like, {tuple_text(originals)})"


# --- one step


def _library(text: OperationText, step: LibraryStep, depth: int) -> list[str]:
    arguments = [_library_argument(text, argument) for argument in step.arguments]
    results = [text.rename(result) for result in step.results]
    function = _function(step.function)
    inner = depth if step.condition is None else depth + 1
    if len(results) == 1 and not step.function.endswith("_backward"):
        lines = bracketed(f"{results[0]} = {function}(", arguments, ").contiguous()", inner)
    else:
        lines = bracketed(f"returned = {function}(", arguments, ")", inner)
        lines += unpacked(results, "(value.contiguous() for value in returned if value is not None)", inner)
    comment = step_comment(step, depth=depth)
    if step.condition is None:
        return [*comment, *lines]
    return [*comment, f"if {text.python(step.condition)}:", *indented(lines)]


def _function(name: str) -> str:
    """Return the Python name of a library function: PyTorch's, or the runtime's for one that calls several."""
    namespace, base = name.split("::")
    return f"torch.ops.aten.{base}" if namespace == "aten" else f"{RUNTIME}.{namespace}_{base}"


def _library_argument(text: OperationText, argument: LibraryArgument) -> str:
    if argument is None:
        return "None"
    if isinstance(argument, tuple):
        return f"[{', '.join(_library_argument(text, item) for item in argument)}]"
    return text.rename(argument) if isinstance(argument, str) else text.python(argument)


def _step_expressions(text: OperationText) -> list[Expression]:
    """List the expressions that the steps evaluate."""
    found: list[Expression] = []
    for step in text.operation.steps:
        match step:
            case Fill(_, value):
                found.append(value)
            case Launch():
                found += [*launch_numbers(step), *step.arguments]
            case LibraryStep():
                found += argument_expressions(step.arguments)
        if not isinstance(step, Fill) and step.condition is not None:
            found.append(step.condition)
    return found
