"""How a module is made to use the operator in place of its own `forward` (or of the method that was captured)."""

from __future__ import annotations

from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.python_text import (
    INDENT,
    LINE_LENGTH,
    bracketed,
    indented,
    literal,
    python_number,
    string_literal,
    tuple_text,
)

MODULE_KINDS = ("module", "method", "kernelbench")
TRAINING = "training"


def is_module(task: Task) -> bool:
    """Whether there is a module to swap the operator into."""
    return task.kind in MODULE_KINDS


def module_names(task: Task) -> tuple[str, ...]:
    """What the file offers."""
    return (task.name, f"use_{task.name}")


def module_functions(task: Task, operation: OperationText) -> list[list[str]]:
    """``use_<name>(module)`` and the method that it puts into the module."""
    return [_settings(task), _use(task), _method_function(task, operation)]


# --- below


def _method(task: Task) -> str:
    """The method that was captured."""
    return task.target.rpartition(".")[2] if task.kind == "method" else "forward"


def _settings(task: Task) -> list[str]:
    settings = {name: value for name, value in task.module_settings.items() if name.split(".")[-1] != TRAINING}
    items = [f"{string_literal(name)}: {_literal(value)}" for name, value in settings.items()]
    return literal("_CAPTURED_SETTINGS = {", items, "}") if items else []


def _literal(value: float | int | bool | str | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return tuple_text([str(entry) for entry in value])
    return string_literal(value) if isinstance(value, str) else python_number(value)


def _use(task: Task) -> list[str]:
    method = _method(task)
    lines = [
        f'"""Make a module of the captured kind compute with `{task.name}`, and return it.',
        "",
        f"Where the kernels cannot be used, and for arguments that were not captured, its own `{method}` runs.",
        f"`del module.{method}` undoes it.",
    ]
    if _settings(task):
        lines += ["Raises ValueError for a module with other settings than the captured one.", '"""']
        lines += [
            "for name, captured in _CAPTURED_SETTINGS.items():",
            "    found = attrgetter(name)(module)",
            "    if found != captured:",
            f'        raise ValueError(f"{task.name} was captured with {{name}}={{captured!r}}, not {{found!r}}")',
        ]
    else:
        lines += [
            "The module must have been made as the captured one was: the kernels have its settings in them.",
            '"""',
        ]
    lines += [f"module.{method} = types.MethodType(_{task.name}_method, module)", "return module"]
    return [f"def use_{task.name}(module: torch.nn.Module) -> torch.nn.Module:", *indented(lines)]


def _method_function(task: Task, operation: OperationText) -> list[str]:
    inputs = [a.name for a in task.arguments if isinstance(a, TaskScalar) or a.role == "input"]
    names = tuple_text([string_literal(name) for name in inputs]) if inputs else "()"
    held = [_attribute(a) for a in task.arguments if isinstance(a, TaskTensor) and a.role != "input"]
    guards = [f"len(inputs) + len(keywords) == len(given) and tuple(given) == {names}", *_training_guards(task)]
    body = [
        '"""The operator inside its contract, the module\'s own code outside."""',
        f"given = {{**dict(zip({names}, inputs)), **keywords}}",
        *_if(guards),
        *indented(
            [
                *_arguments(held),
                f"reason = _{task.name}_outside(*arguments)",
                "if not reason:",
                f"    return {operation.qualified_name}(*arguments)",
                f'_say_once("{task.name}", reason)',
            ]
        ),
        f"return type(module).{_method(task)}(module, *inputs, **keywords)",
    ]
    return [
        *bracketed(f"def _{task.name}_method(", ["module: Any", "*inputs: Any", "**keywords: Any"], ") -> Any:"),
        *indented(body),
    ]


def _if(guards: list[str]) -> list[str]:
    one_line = f"if {' and '.join(guards)}:"
    if len(INDENT + one_line) <= LINE_LENGTH:
        return [one_line]
    terms = [term for guard in guards for term in guard.split(" and ")]
    return ["if (", *indented([terms[0], *(f"and {term}" for term in terms[1:])]), "):"]


def _arguments(held: list[str]) -> list[str]:
    return literal("arguments = (", ["*given.values()", *held], ")")


def _training_guards(task: Task) -> list[str]:
    """The modes that the graph was captured in, where the capture says that they matter."""
    modes = {name: value for name, value in task.module_settings.items() if name.split(".")[-1] == TRAINING}
    return [f"{'' if value else 'not '}module.{name}" for name, value in modes.items() if name.count(".") == 0]


def _attribute(argument: TaskTensor) -> str:
    """``module.norm.weight``; a part that is no identifier is reached by `getattr`."""
    text = "module"
    for part in (argument.qualified_name or argument.name).split("."):
        text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
    return text
