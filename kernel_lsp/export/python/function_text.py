"""Print the code that makes the optimized target use its operator: a function as a whole, a module by one of its
methods."""

from __future__ import annotations

from kernel_lsp.core.task import Task, TaskTensor
from kernel_lsp.export.python.module_text import is_module, method_of
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.python_text import bracketed, indented, string_literal


def offered_names(task: Task) -> tuple[str, ...]:
    """Return the public names of an operator's file: the operator, and the function that makes the original use it."""
    return (task.name, f"use_{task.name}") if is_module(task) or _takes_inputs_only(task) else (task.name,)


def use_function(task: Task, operation: OperationText) -> list[str]:
    """Print ``use_<name>(original)``; nothing where the operator takes more than the function."""
    if is_module(task):
        return _use_in_module(task)
    return _use(task, operation) if _takes_inputs_only(task) else []


def _takes_inputs_only(task: Task) -> bool:
    """Return True if the operator's arguments are the function's. A constant tensor of the user's file is an extra
    one."""
    return all(not isinstance(argument, TaskTensor) or argument.role == "input" for argument in task.arguments)


def _use(task: Task, operation: OperationText) -> list[str]:
    defaults = [f"{string_literal(a.name)}: {a.default}" for a in operation.arguments if a.default]
    takes = ["original: Callable[..., Any]", "report: bool = False"]
    body = [
        '"""Return `original`, computed by these kernels where they can be; `report=True` prints, `calls()` counts."""',
        f"return OPERATOR.use(original, {{{', '.join(defaults)}}}, report)",
    ]
    return [*bracketed(f"def use_{task.name}(", takes, ") -> Callable[..., Any]:"), *indented(body)]


def _use_in_module(task: Task) -> list[str]:
    method = method_of(task)
    takes = ["module: torch.nn.Module", "report: bool = False"]
    body = [
        f'"""Have the module\'s `{method}` computed by these kernels, and by its own code for other settings, another',
        'mode and inputs outside the contract. `report=True` prints what computes it; `calls()` counts."""',
        "return OPERATOR.use_in(module, report)",
    ]
    return [*bracketed(f"def use_{task.name}(", takes, ") -> torch.nn.Module:"), *indented(body)]
