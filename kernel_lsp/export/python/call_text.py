"""One call of an operation on a GPU, as a Python function: allocate, and take the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.core.expression import Expression
from kernel_lsp.core.plan import Fill, Launch, LibraryArgument, LibraryStep
from kernel_lsp.export.python.operation_text import OperationText, step_comment
from kernel_lsp.export.python.python_text import bracketed, indented, literal, returned, unpacked
from kernel_lsp.plan.step_parts import argument_expressions


def cuda_function(text: OperationText) -> list[str]:
    """One call on a GPU: allocate, and take the steps."""
    inputs = [text.rename(tensor.name) for tensor in text.inputs]
    facts = [f"{name}.{fact}" for name in inputs for fact in ("device", "dtype", "shape")]
    scalars = [argument.name for argument in text.arguments if not argument.is_tensor]
    functions = [f"_{text.name}_outside", f"_{text.name}_bind"]
    bound = [f'"{text.name}"', "inputs_key", *functions, *(argument.name for argument in text.arguments)]
    lookup = [
        *literal("inputs_key = (", [f"_{text.name}_bind", *facts, *scalars], ")", depth=1),
        "launches = _BOUND.by_inputs.get(inputs_key)",
        "if launches is None:",
        *indented(bracketed("launches = _bound(", bound, ")", depth=2)),
        "if isinstance(launches, str):",
        *indented(bracketed(f"return _{text.name}_by_pytorch(", text.argument_names, ")", depth=2)),
    ]
    results = [text.rename(result.name) for result in text.operation.results]
    steps = [*_prepare(text, inputs), *_steps(text), *returned(results, depth=2)]
    guard = f"with on_device({inputs[0]}.device.index)"
    guard += ', torch.autocast("cuda", enabled=False):' if text.library_functions else ":"
    return [*text.define("_", "_cuda", text.returns), *indented([*lookup, guard, *indented(steps)])]


# --- below: before the steps, and the steps


def _prepare(text: OperationText, inputs: Sequence[str]) -> list[str]:
    lines = [f"{name} = _ready({name})" for name in inputs]
    allocated = text.allocated()
    used = [dim for tensor in allocated for dim in tensor.dims]
    lines += text.bindings([*used, *_step_expressions(text)])
    lines += [f"{text.rename(t.name)} = {text.empty(t, f'{inputs[0]}.device')}" for t in allocated]
    if text.launches:
        lines += [f"stream = current_stream({inputs[0]}.device.index)"]
        names = [f"launch_{number}" for number in range(1, len(text.launches) + 1)]
        lines += unpacked(names, "launches", 2)
    return lines


def _steps(text: OperationText) -> list[str]:
    lines: list[str] = []
    n_launches = 0
    for step in text.operation.steps:
        match step:
            case Fill(tensor, value):
                lines += [f"{text.rename(tensor)}.fill_({text.python(value)})"]
            case Launch():
                n_launches += 1
                lines += _launch(text, f"launch_{n_launches}", step)
            case LibraryStep():
                lines += _library(text, step)
    return lines


def _launch(text: OperationText, name: str, launch: Launch) -> list[str]:
    parameters = text.signature(launch).parameters
    tensors = [a for a, p in zip(launch.arguments, parameters, strict=True) if p.is_pointer]
    pointers = [f"{text.python(tensor)}.data_ptr()" for tensor in tensors]
    if launch.condition is None:
        return bracketed(f"{name}(", ["stream", *pointers], ")", depth=2)
    return [f"if {name} is not None:", *indented(bracketed(f"{name}(", ["stream", *pointers], ")", depth=3))]


def _library(text: OperationText, step: LibraryStep) -> list[str]:
    arguments = [_library_argument(text, argument) for argument in step.arguments]
    results = [text.rename(result) for result in step.results]
    function = "torch.ops." + step.function.replace("::", ".")
    depth = 2 if step.condition is None else 3
    if len(results) == 1 and not step.function.endswith("_backward"):
        lines = bracketed(f"{results[0]} = {function}(", arguments, ").contiguous()", depth)
    else:
        lines = bracketed(f"returned = {function}(", arguments, ")", depth)
        lines += unpacked(results, "(value.contiguous() for value in returned if value is not None)", depth)
    comment = step_comment(step, depth=2)
    if step.condition is None:
        return [*comment, *lines]
    return [*comment, f"if {text.python(step.condition)}:", *indented(lines)]


def _library_argument(text: OperationText, argument: LibraryArgument) -> str:
    if argument is None:
        return "None"
    if isinstance(argument, tuple):
        return f"[{', '.join(_library_argument(text, item) for item in argument)}]"
    return text.rename(argument) if isinstance(argument, str) else text.python(argument)


def _step_expressions(text: OperationText) -> Iterable[Expression]:
    """What the steps other than launches evaluate at each call."""
    for step in text.operation.steps:
        if isinstance(step, Fill):
            yield step.value
        elif isinstance(step, LibraryStep):
            yield from argument_expressions(step.arguments)
            if step.condition is not None:
                yield step.condition
