"""The result of a run: the kernel as it is, and a PyTorch operator for it that needs nothing of ours."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.task import Task
from kernel_lsp.export.files import check_replaceable, pair_texts, write_pair
from kernel_lsp.export.python.operator_file import operator_text
from kernel_lsp.export.python.operator_text import OperatorParts
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.standard_headers import headers_of


def write_operator(
    task: Task, cu_text: str, plan: LaunchPlan, directory: Path, *, verification: str
) -> tuple[Path, Path]:
    """Write ``<task.name>.cu`` (the text as it is) and ``<task.name>.py`` into the directory; returns both paths.

    `plan` is the plan in `cu_text`. `verification` says how the kernel was checked, in words that stand in the
    operator's docstring. Nothing is written unless both files can be.

    Raises TargetError when a file is in the way that is not ours, PlanError when the plan does not fit its kernels or
    the task, and EnvironmentProblem when the directory cannot be written.
    """
    parts = _parts(task, cu_text, plan, verification)
    return write_pair(directory, task.name, cu_text, operator_text(parts))


def render_operator(
    task: Task, cu_text: str, plan: LaunchPlan, directory: Path, *, verification: str
) -> dict[Path, str]:
    """What `write_operator` would write, by path, the kernel first. Writes nothing, and raises the same."""
    parts = _parts(task, cu_text, plan, verification)
    return pair_texts(directory, task.name, cu_text, operator_text(parts))


def check_operator_can_be_written(task_name: str, directory: Path) -> None:
    """Raises what `write_operator` would raise for a file in the way, so that a run need not end with it."""
    check_replaceable(directory, task_name)


# --- below


def _parts(task: Task, cu_text: str, plan: LaunchPlan, verification: str) -> OperatorParts:
    return OperatorParts(task, plan, kernel_signatures(cu_text), verification, headers=headers_of(cu_text))
