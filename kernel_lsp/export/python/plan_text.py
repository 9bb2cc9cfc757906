"""Print an operation's launch plan for its operator file, which the runtime compiles to contract, allocations and
launches: the plan's own lines with Python's expressions and names, and the type of each number of a launch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import Fill, Launch, LibraryArgument, LibraryStep, Step, TensorParameter
from kernel_lsp.export.python.operation_text import OperationText, dtype_and_shape
from kernel_lsp.export.python.python_text import INDENT, LINE_LENGTH, python_number
from kernel_lsp.plan.kernel_names import typed_name

KEPT_SPACE = "\0"
"""A space at which no line ends."""
SHAPE = re.compile(r"\[[^\]]*\]")
BREAKS = re.compile(r"(, )| ")
WRAPPER = textwrap.TextWrapper(
    LINE_LENGTH, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
)


def plan_constant(name: str, text: OperationText, forward: OperationText | None = None) -> list[str]:
    """Print ``NAME = \"\"\"...\"\"\"``. A backward that has the contract of `forward` states what differs: its own
    conditions, and names whose types the forward has."""
    lines = [f"op: {_signature(text, forward)}"]
    lines += [f"where: {condition}" for condition in _conditions(text, forward)]
    scratch = [tensor for tensor in text.allocated() if tensor not in text.returned]
    for directive, tensors in (("keeps", text.operation.kept), ("scratch", scratch)):
        lines += [f"{directive}: {', '.join(_alike(text, tensors))}"] if tensors else []
    lines += [_step(text, step) for step in text.operation.steps]
    return [f'{name} = """', *(wrapped for line in lines for wrapped in _wrapped(line)), '"""']


def _wrapped(line: str) -> list[str]:
    """Wrap a line of the plan, after commas outside of shapes where that is possible."""
    whole = BREAKS.sub(lambda space: space[0] if space[1] else KEPT_SPACE, SHAPE.sub(_kept, line))
    for text in (whole, line):
        wrapped = [each.replace(KEPT_SPACE, " ") for each in WRAPPER.wrap(text)]
        if all(len(each) <= LINE_LENGTH for each in wrapped):
            break
    return wrapped


def _kept(shape: re.Match[str]) -> str:
    return shape[0].replace(" ", KEPT_SPACE)


def _signature(text: OperationText, forward: OperationText | None) -> str:
    types = {text.rename(tensor.name): _type(text, tensor) for tensor in text.inputs}
    typed = [f"{a.name}: {types.get(a.name, a.annotation)}" for a in text.arguments]
    results = [
        f"{text.rename(r.name)} = {text.rename(r.same_as)}" if r.same_as else f"{text.rename(r.name)}: {_type(text, r)}"
        for r in text.operation.results
    ]
    if forward is not None:
        typed = [*text.argument_names[: -len(forward.argument_names)], "..."]
        results = [entry.partition(": ")[0] for entry in results]
    return f"{text.name}({', '.join(typed)}) -> ({', '.join(results)})"


def _conditions(text: OperationText, forward: OperationText | None) -> list[str]:
    """Print the numbers that the kernels have as constants, the plan's `where:` lines, and the bound on sizes."""
    if forward is not None:
        return [text.python(each) for each in text.conditions if each not in forward.conditions]
    fixed = [_fixed(argument.name, argument.fixed) for argument in text.arguments if argument.fixed is not None]
    return [*fixed, *map(text.python, text.conditions)]


def _fixed(name: str, value: float | int | bool) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} == {python_number(value)}"


def _alike(text: OperationText, tensors: Iterable[TensorParameter]) -> list[str]:
    """Return ``a, b: f32[B, T]`` for the tensors of each type."""
    groups: dict[str, list[str]] = {}
    for tensor in tensors:
        groups.setdefault(_type(text, tensor), []).append(text.rename(tensor.name))
    return [f"{', '.join(names)}: {type_}" for type_, names in groups.items()]


def _type(text: OperationText, tensor: TensorParameter) -> str:
    return dtype_and_shape(tensor.dtype, map(text.python, tensor.dims))


def _step(text: OperationText, step: Step) -> str:
    match step:
        case Fill(tensor, value):
            return f"fill: {text.rename(tensor)} = {text.python(value)}"
        case Launch():
            return f"launch{_condition(text, step.condition)}: {_launch(text, step)}"
        case LibraryStep():
            arguments = ", ".join(_library_argument(text, argument) for argument in step.arguments)
            results = ", ".join(map(text.rename, step.results))
            return f"library{_condition(text, step.condition)}: {step.function}({arguments}) -> ({results})"


def _condition(text: OperationText, condition: Expression | None) -> str:
    return "" if condition is None else f"[{text.python(condition)}]"


def _launch(text: OperationText, launch: Launch) -> str:
    sizes = [_size(text, launch.grid), _size(text, launch.block)]
    shared = text.python(launch.shared_bytes)
    sizes += [shared] if shared != "0" else []
    given = [
        f"{type_}({text.python(argument)})" if type_ not in ("", "int") else text.python(argument)
        for argument, type_ in zip(launch.arguments, text.number_types(launch), strict=True)
    ]
    attributes = "".join(f" {name}={value}" for name, value in launch.attributes)
    return f"{_kernel_name(text, launch)}<<<{', '.join(sizes)}>>>({', '.join(given)}){attributes}"


def _size(text: OperationText, size: tuple[Expression, Expression, Expression]) -> str:
    """Print a grid or a block without trailing ones; a single number as itself."""
    parts = [text.python(part) for part in size]
    while len(parts) > 1 and parts[-1] == "1":
        parts.pop()
    return parts[0] if len(parts) == 1 else f"dim3({', '.join(parts)})"


def _kernel_name(text: OperationText, launch: Launch) -> str:
    """Return the name expression, e.g. ``rows<256>``, or ``rows<{D}>`` where shapes choose the template."""
    signature = text.signature(launch)
    if typed := typed_name(launch, signature, text.signatures):
        return typed
    texts = [_template_text(text, argument) for argument in launch.template_arguments]
    return f"{launch.kernel}<{', '.join(texts)}>" if texts or signature.template_parameters else launch.kernel


def _template_text(text: OperationText, argument: Expression | str) -> str:
    if isinstance(argument, str):
        return argument
    return f"{{{text.python(argument)}}}" if free_names(argument) else text.python(argument).lower()


def _library_argument(text: OperationText, argument: LibraryArgument) -> str:
    if argument is None:
        return "None"
    if isinstance(argument, tuple):
        return f"[{', '.join(_library_argument(text, item) for item in argument)}]"
    return text.rename(argument) if isinstance(argument, str) else text.python(argument)
