"""Print a launch plan as the comment block of a `.cu` file. ``parse(print_plan(plan)).plan == plan``."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.core.expression import Constant, Expression
from kernel_lsp.core.plan import (
    Fill,
    Launch,
    LaunchPlan,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    Step,
    TensorParameter,
)

MAX_COLUMNS = 110
CONTINUATION = "//     "


def print_plan(plan: LaunchPlan) -> str:
    """Return the comment block, with lines of at most 110 columns where possible, ending in a newline."""
    lines = [f"// kernel-lsp: {plan.version}"]
    if plan.task is not None:
        lines.append(f"// task: {plan.task}")
    for operation in plan.operations:
        for directive in _operation_directives(operation):
            lines.extend(_wrap(f"// {directive}"))
    return "\n".join(lines) + "\n"


def print_signature(operation: Operation) -> str:
    """Print ``name(x: f32[B, D], eps: float) -> (out: f32[B, D])``."""
    parameters = ", ".join(_parameter(parameter) for parameter in operation.parameters)
    results = ", ".join(_parameter(result) for result in operation.results)
    return f"{operation.name}({parameters}) -> ({results})"


def print_step(step: Step) -> str:
    """Print one step as its directive: ``launch: kernel<256><<<B, 256>>>(x, out, D)``."""
    match step:
        case Fill(tensor, value):
            return f"fill: {tensor} = {value}"
        case Launch():
            return f"launch{_condition(step.condition)}: {_launch(step)}"
        case LibraryStep():
            arguments = ", ".join(_library_argument(argument) for argument in step.arguments)
            results = ", ".join(step.results)
            return f"library{_condition(step.condition)}: {step.function}({arguments}) -> ({results})"


def _operation_directives(operation: Operation) -> list[str]:
    return [
        f"op: {print_signature(operation)}",
        *(f"where: {condition.expression}" for condition in operation.where),
        *(f"keeps: {_parameter(tensor)}" for tensor in operation.kept),
        *(f"scratch: {_parameter(tensor)}" for tensor in operation.scratch),
        *(print_step(step) for step in operation.steps),
    ]


def _parameter(parameter: TensorParameter | ScalarParameter) -> str:
    if isinstance(parameter, ScalarParameter):
        return f"{parameter.name}: {parameter.type}"
    if parameter.same_as:
        return f"{parameter.name} = {parameter.same_as}"
    return f"{parameter.name}: {parameter.dtype}[{', '.join(map(str, parameter.dims))}]"


def _condition(condition: Expression | None) -> str:
    return "" if condition is None else f"[{condition}]"


def _launch(launch: Launch) -> str:
    template = f"<{', '.join(map(str, launch.template_arguments))}>" if launch.template_arguments else ""
    configuration = f"{_size(launch.grid)}, {_size(launch.block)}"
    if launch.shared_bytes != Constant(0):
        configuration += f", {launch.shared_bytes}"
    arguments = ", ".join(map(str, launch.arguments))
    attributes = "".join(f" {name}={value}" for name, value in launch.attributes)
    return f"{launch.kernel}{template}<<<{configuration}>>>({arguments}){attributes}"


def _size(size: tuple[Expression, Expression, Expression]) -> str:
    x, y, z = size
    if z != Constant(1):
        return f"dim3({x}, {y}, {z})"
    return f"dim3({x}, {y})" if y != Constant(1) else str(x)


def _library_argument(argument: LibraryArgument) -> str:
    if argument is None:
        return "none"
    if isinstance(argument, tuple):
        return f"[{', '.join(_library_argument(item) for item in argument)}]"
    return str(argument)


def _wrap(directive: str) -> list[str]:
    """Wrap a directive, after a comma if there is one in the second half of the line."""
    lines, prefix, rest = [], "", directive
    while len(prefix) + len(rest) > MAX_COLUMNS:
        width = MAX_COLUMNS - len(prefix)
        at = _break_position(rest, width)
        if at < 0:
            break
        lines.append(prefix + rest[:at])
        prefix, rest = CONTINUATION, rest[at + 1 :]
    return [*lines, prefix + rest]


def _break_position(text: str, width: int) -> int:
    """Return the space to break at within `width`: after the last comma outside brackets, else the last space; else the
    first space after `width`."""
    first = len("// ") if text.startswith("// ") else 0
    comma = max((at for at in _outer_commas(text[: width + 1]) if width // 3 <= at < width), default=-1)
    if comma >= 0:
        return comma + 1
    space = text.rfind(" ", first, width + 1)
    return space if space >= 0 else text.find(" ", max(first, width))


def _outer_commas(text: str) -> Iterator[int]:
    """Return the commas before a space that separate parameters, not dims: outside ``[...]``."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth <= 0 and text.startswith(", ", at):
            yield at
