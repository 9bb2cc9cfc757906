"""A launch as a Python statement: kernel, grid, block, arguments with their C++ types, attributes."""

from __future__ import annotations

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import Launch
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.python_text import INDENT, LINE_LENGTH, bracketed, indented, packed, tuple_text
from kernel_lsp.plan.kernel_names import typed_name


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


# --- parts of a launch


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
