"""Every exception that kernel_lsp raises on purpose.

    KernelLspError                 has .next_step: what the user can do about it
    ├── UserError                  the input is at fault
    │   ├── TargetError            the target cannot be found, read, imported or captured
    │   │   └── UnknownInputsError its text does not say what it is called with; has .pragmas that would
    │   ├── PlanError              the launch plan does not parse, bind or fit its kernels
    │   ├── SettingError           a setting or option has no such value
    │   └── RepliesAwaited         nothing is left to do until a person replies; the run can be resumed
    ├── EnvironmentProblem         the machine is at fault: no compiler, no torch, disk full, no permission
    │   ├── WorkspaceBusyError     another run holds this workspace
    │   ├── ScratchFullError       there is no space left for test data
    │   └── ConnectionLostError    another machine was reached, and is not any more
    └── InternalError              we are at fault

A verdict about a candidate is never an exception: see `kernel_lsp.core.verdict`.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def page(name: str, package: Path = PACKAGE) -> str:
    """Return where a page of the documentation is: ``docs/NAME`` of a checkout, else the installed file."""
    return f"docs/{name}" if (package.parent / "docs" / name).is_file() else str(package / "docs" / name)


class KernelLspError(Exception):
    """Base of all. `file` and `line` (1-based) locate the fault where one is known."""

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.next_step = next_step

    def __str__(self) -> str:
        place = self.file or ""
        if self.file and self.line is not None:
            place = f"{self.file}:{self.line}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{text}\n  next: {self.next_step}" if self.next_step else text


class UserError(KernelLspError):
    """The input is at fault."""


class TargetError(UserError):
    """The target cannot be found, read, imported or captured."""


class UnknownInputsError(TargetError):
    """The target's text does not determine its inputs. `pragmas` would complete it: 1-based lines to insert above,
    and texts; empty where no pragma can state them."""

    def __init__(self, message: str, *, file: str, line: int, next_step: str, pragmas: tuple[tuple[int, str], ...]):
        super().__init__(message, file=file, line=line, next_step=next_step)
        self.pragmas = pragmas


class PlanError(UserError):
    """The launch plan does not parse, bind or fit its kernels."""


class SettingError(UserError):
    """A setting or option has no such value."""


class RepliesAwaited(UserError):
    """Nothing is left to do until a person replies; the run can be resumed."""


class EnvironmentProblem(KernelLspError):
    """The machine is at fault."""


class WorkspaceBusyError(EnvironmentProblem):
    """Another run holds this workspace."""


class ScratchFullError(EnvironmentProblem):
    """There is no space left for test data."""


class ConnectionLostError(EnvironmentProblem):
    """Another machine was reached, and is not any more."""


class InternalError(KernelLspError):
    """We are at fault."""
