"""The launches of an operation as a Python function: everything about them that shapes and numbers decide."""

from __future__ import annotations

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import Launch
from kernel_lsp.export.python.operation_text import OperationText, step_comment
from kernel_lsp.export.python.python_text import indented, literal, tuple_text
from kernel_lsp.plan.kernel_names import typed_name
from kernel_lsp.plan.step_parts import launch_numbers


def bind_function(text: OperationText) -> list[str]:
    """Everything about the launches that shapes and numbers decide."""
    body = ['"""The launches for these shapes and numbers."""']
    if not text.launches:
        return [*text.define("_", "_bind", "tuple[Any, ...]"), *indented([*body, "return ()"])]
    body += [f"device_index = {text.rename(text.inputs[0].name)}.device.index"]
    body += text.bindings(
        expression for launch in text.launches for expression in (*launch_numbers(launch), *launch.arguments)
    )
    names = [f"launch_{number}" for number in range(1, len(text.launches) + 1)]
    for name, launch in zip(names, text.launches, strict=True):
        body += _bind(text, name, launch)
    return [
        *text.define("_", "_bind", "tuple[Any, ...]"),
        *indented([*body, *literal("return (", names, ")", depth=1)]),
    ]


def kernel_names(text: OperationText) -> tuple[str, ...]:
    """The name expressions that do not depend on shapes, so that one compilation makes them all."""
    names = [_kernel_name(text, launch) for launch in text.launches]
    return tuple(name[1:-1] for name in names if name.startswith('"'))


# --- below: one launch


def _bind(text: OperationText, name: str, launch: Launch) -> list[str]:
    comment = step_comment(launch, depth=1)
    depth = 2 if launch.condition is None else 3
    made = [
        f"{name} = KernelLaunch(",
        *indented(
            [
                f"_kernels().function({_kernel_name(text, launch)}, device_index),",
                f"grid={_size(text, launch.grid)},",
                f"block={_size(text, launch.block)},",
                f"shared_bytes={text.python(launch.shared_bytes)},",
                *literal("arguments=(", _kernel_arguments(text, launch), "),", depth),
                f"attributes={_attributes(launch)},",
            ]
        ),
        ")",
    ]
    if launch.condition is None:
        return [*comment, *made]
    condition = text.python(launch.condition)
    return [*comment, f"{name} = None", f"if {condition}:", *indented(made)]


def _kernel_arguments(text: OperationText, launch: Launch) -> list[str]:
    typed = zip(launch.arguments, text.number_types(launch), strict=True)
    return ["POINTER" if not type_ else f'("{type_}", {text.python(argument)})' for argument, type_ in typed]


def _kernel_name(text: OperationText, launch: Launch) -> str:
    """A Python expression for the name expression, e.g. ``"rows<256>"`` or ``f"rows<{D}>"``."""
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


def _size(text: OperationText, size: tuple[Expression, Expression, Expression]) -> str:
    return tuple_text([text.python(part) for part in size])


def _attributes(launch: Launch) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in launch.attributes) + "}"
