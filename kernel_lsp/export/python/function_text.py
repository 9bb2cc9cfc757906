"""Print how the optimized target uses its operator: a function as a whole, a module's method by a mapping."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.export.python.operation_text import RUNTIME
from kernel_lsp.export.python.python_text import (
    bracketed,
    call_of_lines,
    dict_rows,
    indented,
    literal,
    packed,
    python_number,
    string_literal,
    tuple_text,
)

MODULE_KINDS = ("module", "method", "kernelbench")
TRAINING = "training"


def offered_names(task: Task) -> tuple[str, ...]:
    """Return the public names of an operator's file: the operator, and the function that makes the original use it."""
    return (task.name, f"use_{task.name}") if _stands_for_calls(task) else (task.name,)


def use_function(task: Task) -> list[str]:
    """Print ``use_<name>(original)``; nothing where the operator takes more than a call of the original gives."""
    if not _stands_for_calls(task):
        return []
    return _use_in_module(task) if is_module(task) else _use(task)


def _stands_for_calls(task: Task) -> bool:
    """Return True if the operator's arguments are the code's and its module's. A constant tensor of the user's file is
    an extra one, and so is a random tensor that the code draws."""
    tensors = [argument for argument in task.arguments if isinstance(argument, TaskTensor)]
    return not task.draws and (is_module(task) or all(argument.role == "input" for argument in tensors))


def _use(task: Task) -> list[str]:
    takes = ["original: Callable[..., Any]", "report: bool = False"]
    body = [
        '"""Return `original`, computed by these kernels where they can be; `report=True` prints, `calls()` counts."""',
        "return OPERATOR.use(original, report=report)",
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


def is_module(task: Task) -> bool:
    """Tell whether there is a module to put the operator into."""
    return task.kind in MODULE_KINDS


def is_state(argument: TaskTensor | TaskScalar) -> bool:
    """Tell whether the argument is the module's, as opposed to the call's."""
    if isinstance(argument, TaskTensor):
        return argument.role != "input"
    return argument.qualified_name is not None


def method_of(task: Task) -> str:
    """Return the method that was captured."""
    return task.target.rpartition(".")[2] if task.kind == "method" else "forward"


def module_use(task: Task) -> list[str]:
    """Print the `ModuleUse` of a module: its method, inputs, state, settings and mode."""
    inputs = [a.name for a in task.arguments if not is_state(a)]
    state = [a.qualified_name or a.name for a in task.arguments if is_state(a)]
    settings = {name: value for name, value in task.module_settings.items() if name.split(".")[-1] != TRAINING}
    items = [f"{string_literal(name)}: {_literal(value)}" for name, value in settings.items()]
    modes = {name: value for name, value in task.module_settings.items() if name.endswith(f".{TRAINING}")}
    parts = [f"{string_literal(name.removesuffix(f'.{TRAINING}'))}: {value}" for name, value in modes.items()]
    ties = _pairs(task.module_ties)
    graphs = {path: " ".join(names) for path, names in task.state_graphs.items()}
    lines = [
        f"method={string_literal(method_of(task))},",
        *literal("inputs=(", list(map(string_literal, inputs)), "),", depth=2),
        *packed("state=(", list(map(string_literal, state)), "),", depth=2),
        *(dict_rows("settings={", items) if items else []),
        *(dict_rows("code={", _code(task)) if task.module_code else []),
        *([f"training={task.module_settings[TRAINING]},"] if TRAINING in task.module_settings else []),
        *(dict_rows("modes={", parts) if parts else []),
        *(dict_rows("tied={", ties) if ties else []),
        *(dict_rows("updates={", _pairs(task.state_updates)) if task.state_updates else []),
        *(dict_rows("graphs={", _pairs(graphs)) if graphs else []),
        *(dict_rows("counters={", _pairs(task.counters)) if task.counters else []),
    ]
    before = f"module={RUNTIME}.ModuleUse("
    return call_of_lines(before, lines, "),", depth=1)


def call_structures(task: Task, rename: Callable[[str], str]) -> list[str]:
    """Print the parameters that are no arguments of the operator. A module's method has the plan's names, a function
    those of the operator."""
    texts = task.call_structures
    return _pairs(texts if is_module(task) else {name: _renamed(text, rename) for name, text in texts.items()})


def _renamed(text: str, rename: Callable[[str], str]) -> str:
    tree = ast.parse(text, mode="eval")
    dtypes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in dtypes and node.id != "_":
            node.id = rename(node.id)
    return ast.unparse(tree.body)


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{string_literal(name)}: {_literal(value)}" for name, value in values.items()]


def _code(task: Task) -> list[str]:
    """Print the paths by what computes them: ``"Linear": "up down"``, as a tuple where a path has a space."""
    paths: dict[str, list[str]] = {}
    for path, name in task.module_code.items():
        paths.setdefault(name, []).append(path)
    listed = {
        name: tuple_text([*map(string_literal, found)])
        if any(" " in path for path in found)
        else string_literal(" ".join(found))
        for name, found in paths.items()
    }
    return [f"{string_literal(name)}: {text}" for name, text in listed.items()]


def _literal(value: float | int | bool | str | tuple[bool | int | float | str | None, ...] | None) -> str:
    if isinstance(value, tuple):
        return tuple_text([_literal(entry) for entry in value]) if value else "()"
    if value is None:
        return "None"
    return string_literal(value) if isinstance(value, str) else python_number(value)
