"""Convert exceptions to values that can cross a pipe."""

from __future__ import annotations

from kernel_lsp.engine.messages import Problem, ProblemKind
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, UserError, WorkspaceBusyError


def problem_of(error: Exception) -> Problem:
    """Convert an exception to a message for the user. One that is not a KernelLspError is an internal error."""
    if not isinstance(error, KernelLspError):
        return Problem(kind="internal", message=f"{type(error).__name__}: {error}")
    return Problem(
        kind=_kind(error), message=error.message, file=error.file, line=error.line, next_step=error.next_step
    )


def _kind(error: KernelLspError) -> ProblemKind:
    if isinstance(error, WorkspaceBusyError):
        return "busy"
    if isinstance(error, EnvironmentProblem):
        return "environment"
    return "user" if isinstance(error, UserError) else "internal"
