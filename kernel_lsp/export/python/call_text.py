"""Print the steps of an operation as a Python function: allocate, fill, launch, call vendor libraries, return."""

from __future__ import annotations

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import (
    Fill,
    Launch,
    LibraryArgument,
    LibraryStep,
    TensorParameter,
    argument_expressions,
    launch_numbers,
)
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText, step_comment
from kernel_lsp.export.python.python_text import (
    INDENT,
    LINE_LENGTH,
    bracketed,
    indented,
    packed,
    returned,
    tuple_text,
    unpacked,
)
from kernel_lsp.plan.kernel_names import typed_name


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
    lines += returned([text.rename(result.name) for result in text.returned], depth=depth)
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
        while names:
            row = next(names[:n] for n in range(len(names), 0, -1) if n == 1 or _is_short(names[:n], made))
            lines += _alike(row, made)
            names = names[len(row) :]
    return lines


def _alike(names: list[str], made: str) -> list[str]:
    return unpacked(names, f"({made} for _ in range({len(names)}))", 2) if len(names) > 1 else [f"{names[0]} = {made}"]


def _is_short(names: list[str], made: str) -> bool:
    return len(_alike(names, made)) == 1


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


def launch_lines(text: OperationText, launch: Launch, depth: int) -> list[str]:
    """Print a launch, `depth` indents in."""
    inner = depth if launch.condition is None else depth + 1
    grid, block = _size(text, launch.grid), _size(text, launch.block)
    arguments = [_kernel_name(text, launch), grid, block]
    last = [f"shared={text.python(launch.shared_bytes)}"] if text.python(launch.shared_bytes) != "0" else []
    last += [f"{name}={value}" for name, value in launch.attributes]
    given = [text.python(argument) for argument in launch.arguments]
    types = [type_ for type_ in text.number_types(launch) if type_]
    last = [f'"{", ".join(types)}"', *last] if types else last
    one_line = f"run.launch({', '.join([*arguments, tuple_text(given), *last])})"
    if len(one_line) + len(INDENT) * inner <= LINE_LENGTH:
        made = [one_line]
    else:
        made = [
            *packed("given = (", given, ")", inner),
            *bracketed("run.launch(", [*arguments, "given", *last], ")", inner),
        ]
    if launch.condition is None:
        return made
    return [f"if {text.python(launch.condition)}:", *indented(made)]


def kernel_names(text: OperationText) -> tuple[str, ...]:
    """Return the name expressions that do not depend on shapes, so that one compilation makes them all."""
    names = [_kernel_name(text, launch) for launch in text.launches]
    return tuple(name[1:-1] for name in names if name.startswith('"'))


def _size(text: OperationText, size: tuple[Expression, Expression, Expression]) -> str:
    """Print a grid or a block without trailing ones; a single number without a tuple."""
    parts = [text.python(part) for part in size]
    while len(parts) > 1 and parts[-1] == "1":
        parts.pop()
    return parts[0] if len(parts) == 1 else tuple_text(parts)


def _kernel_name(text: OperationText, launch: Launch) -> str:
    """Return a Python expression for the name expression, e.g. ``"rows<256>"`` or ``f"rows<{D}>"``."""
    signature = text.signature(launch)
    if typed := typed_name(launch, signature, text.signatures):
        return f'"{typed}"'
    texts = [_template_text(text, argument) for argument in launch.template_arguments]
    has_defaults = bool(signature.template_parameters)
    name = f"{launch.kernel}<{', '.join(texts)}>" if texts or has_defaults else launch.kernel
    return f'{"f" if "{" in name else ""}"{name}"'


def _template_text(text: OperationText, argument: Expression | str) -> str:
    if isinstance(argument, str):
        return argument
    if free_names(argument):
        return f"{{str({text.python(argument)}).lower()}}"
    return text.python(argument).lower()
