"""Write the result of a run: the kernel unchanged, and a PyTorch operator for it that does not depend on kernel_lsp."""

from __future__ import annotations

import textwrap
from pathlib import Path

from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.task import Task
from kernel_lsp.export.files import RuntimeFile, check_replaceable, operator_files, write_operator_files
from kernel_lsp.export.python.operation_text import RUNTIME
from kernel_lsp.export.python.operator_imports import imports
from kernel_lsp.export.python.operator_text import OperatorParts, OperatorText
from kernel_lsp.export.python.python_text import (
    LINE_LENGTH,
    call_of_lines,
    literal,
    section,
    string_literal,
)
from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE, RUNTIME_VERSION, runtime_text
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.standard_headers import headers_of

CONTRACT = "what the `op:` and `where:` lines of {name}.cu say"


def write_operator(
    task: Task, cu_text: str, plan: LaunchPlan, directory: Path, *, verification: str
) -> tuple[Path, ...]:
    """Write ``<task.name>.cu`` (the text as it is), ``<task.name>.py`` and the runtime that it shares with the other
    operators of the directory; return their paths, these first.

    `plan` is the plan in `cu_text`. `verification` says how the kernel was checked, in words that stand in the
    operator's docstring. Nothing is written unless all files can be.

    Raises TargetError when a file is in the way that is not ours, PlanError when the plan does not fit its kernels or
    the task, and EnvironmentProblem when the directory cannot be written.
    """
    text = operator_text(_parts(task, cu_text, plan, verification))
    return write_operator_files(directory, task.name, cu_text, text, runtime_file())


def render_operator(
    task: Task, cu_text: str, plan: LaunchPlan, directory: Path, *, verification: str
) -> dict[Path, str]:
    """Return the files of `write_operator` by path, the kernel first; files that operators share only where they would
    change. Writes nothing, and raises the same errors."""
    text = operator_text(_parts(task, cu_text, plan, verification))
    texts = operator_files(directory, task.name, cu_text, text, runtime_file())
    own = {f"{task.name}.cu", f"{task.name}.py"}
    return {path: text for path, text in texts.items() if path.name in own or not _holds(path, text)}


def check_operator_can_be_written(task_name: str, directory: Path, target: str) -> None:
    """Raise what `write_operator` would raise for a conflicting file, so that the problem is reported before the
    run; and TargetError for the kernel of another target. `target` is as seen from the directory."""
    check_replaceable(directory, task_name, RUNTIME_MODULE, target)


def runtime_file() -> RuntimeFile:
    """Return the runtime that operators of this version share."""
    return RuntimeFile(RUNTIME_MODULE, RUNTIME_VERSION, runtime_text())


def _parts(task: Task, cu_text: str, plan: LaunchPlan, verification: str) -> OperatorParts:
    return OperatorParts(task, plan, kernel_signatures(cu_text), verification, headers=headers_of(cu_text))


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def operator_text(parts: OperatorParts) -> str:
    """Print the file without its marker line. Raises PlanError for a plan that does not fit its kernels."""
    operator = OperatorText(parts)
    functions = section(
        *(operator.public_function(), operator.use_part(), operator.launch_plan(), operator.reference("PLAN")),
        _operator(operator),
    )
    body = [*functions, "calls = OPERATOR.calls"]
    head = [*imports("\n".join(body)), "", *operator.runtime_import()]
    docstring = operator.docstring(contract=CONTRACT.format(name=operator.name))
    return "\n".join([*docstring, "", *head, "", operator.public_names(), *body, ""])


def _operator(operator: OperatorText) -> list[str]:
    lines = ["PLAN,", f"reference={operator.name}_reference,"]
    if not operator.is_differentiable:
        lines += ["is_differentiable=False,"]
    if operator.headers:
        items = [f"{string_literal(name)}: {RUNTIME}.HEADERS[{string_literal(name)}]" for name in operator.headers]
        lines += literal("headers={", items, "},", depth=1)
    lines += operator.module_arguments()
    return [*_autograd_comment(operator), *call_of_lines(f"OPERATOR = {RUNTIME}.CudaOperator(", lines, ")")]


def _autograd_comment(operator: OperatorText) -> list[str]:
    """Return the comment above the registration that names the source of the gradients."""
    if not operator.is_differentiable:
        text = "It has no gradients."
    elif operator.backward is None:
        text = f"Autograd: {operator.name}_reference runs again, for there is no backward kernel."
    else:
        text = f"Autograd: by {operator.name}_backward's launches, all else by running {operator.name}_reference again."
    return textwrap.wrap(text, LINE_LENGTH, initial_indent="# ", subsequent_indent="# ")
