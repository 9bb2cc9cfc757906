"""How a function is called with the kernels of its operator where they can, and with its own code everywhere else."""

from __future__ import annotations

from kernel_lsp.core.task import Task, TaskTensor
from kernel_lsp.export.python.module_text import is_module, module_functions, module_names
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.python_text import bracketed, indented, literal


def offered_names(task: Task) -> tuple[str, ...]:
    """What an operator's file offers: the operator, and how what it was made from is made to use it."""
    if is_module(task):
        return module_names(task)
    return (task.name, f"use_{task.name}") if _takes_inputs_only(task) else (task.name,)


def use_functions(task: Task, operation: OperationText) -> list[list[str]]:
    """``use_<name>(what it was made from)``, with what that needs."""
    if is_module(task):
        return module_functions(task, operation)
    return [_use(task, operation), _given(task, operation)] if _takes_inputs_only(task) else []


# --- below


def _takes_inputs_only(task: Task) -> bool:
    """Whether the operator takes what the function takes: a constant tensor of the user's file is something else."""
    return all(not isinstance(argument, TaskTensor) or argument.role == "input" for argument in task.arguments)


def _use(task: Task, operation: OperationText) -> list[str]:
    name = task.name
    return [
        f"def use_{name}(original: Callable[..., Any]) -> Callable[..., Any]:",
        *indented(
            [
                '"""`original`, with the kernels of this file where they can be used.',
                "",
                "Everywhere else, and for arguments that were not captured, `original` itself runs.",
                '"""',
                "",
                "def computed(*inputs: Any, **keywords: Any) -> Any:",
                *indented(
                    [
                        "try:",
                        f"    arguments = _{name}_given(*inputs, **keywords)",
                        "except TypeError:",
                        "    return original(*inputs, **keywords)",
                        f"reason = _{name}_outside(*arguments)",
                        "if not reason:",
                        f"    return {operation.qualified_name}(*arguments)",
                        f'_say_once("{name}", reason)',
                        "return original(*inputs, **keywords)",
                    ]
                ),
                "",
                "return computed",
            ]
        ),
    ]


def _given(task: Task, operation: OperationText) -> list[str]:
    """The arguments of a call in the operator's order. A call with others raises TypeError."""
    declarations = [f"{a.name}: Any" + (f" = {a.default}" if a.default else "") for a in operation.arguments]
    names = [argument.name for argument in operation.arguments]
    return [
        *bracketed(f"def _{task.name}_given(", declarations, ") -> tuple[Any, ...]:"),
        *indented(['"""The arguments of a call, in the operator\'s order. Raises TypeError for other ones."""']),
        *indented(literal("return (", names, ")", depth=1)),
    ]
