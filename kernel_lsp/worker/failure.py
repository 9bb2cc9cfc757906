"""Report errors in a user's file with file, line and next step."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from types import TracebackType
from typing import Any

MESSAGE_LINES = 3
MESSAGE_CHARACTERS = 500
WORKER_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Failure(Exception):
    """Base. `kind` selects the engine's exception."""

    kind = "internal"

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None, next_step: str = "") -> None:
        super().__init__(message)
        self.message, self.file, self.line, self.next_step = message, file, line, next_step

    def as_json(self) -> dict[str, Any]:
        """Return the answer's ``error`` object."""
        return {
            "kind": self.kind,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "next_step": self.next_step,
        }


class TargetFailure(Failure):
    """The user's file is at fault."""

    kind = "target"


class EnvironmentFailure(Failure):
    """The interpreter is at fault: no torch, or one that is too old."""

    kind = "environment"


class ScratchFailure(EnvironmentFailure):
    """No disk space is left for test data."""

    kind = "scratch"


UNDER_MAIN = 'move {} under `if __name__ == "__main__":`'
"""Next step where code of a program runs at the import of its file."""


def raised_by_user(
    error: BaseException, doing: str, file: str, *, next_step: str = "", line: int | None = None
) -> TargetFailure:
    """Convert an `error` that the user's code raised while `doing` something, located at the user's innermost line."""
    where, at = user_place(error, file)
    if isinstance(error, SyntaxError):
        where, at = error.filename or where, error.lineno
    if isinstance(error, SystemExit):
        message = f"the file ended the interpreter (exit code {error.code}) while {doing}"
        next_step = next_step or UNDER_MAIN.format("what ends it, such as parse_args() or exit(),")
    else:
        message = f"{doing} raised {type(error).__name__}: {short_message(error)}"
    if isinstance(error, PermissionError):
        next_step = f"{UNDER_MAIN.format('what writes files or uses the network')}: here it may do neither"
    return TargetFailure(
        message,
        file=where,
        line=at if at is not None else line,
        next_step=next_step or "make the file run under plain Python first, then try again",
    )


def short_message(error: BaseException) -> str:
    """Return the first lines of an exception's text."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(lines[:MESSAGE_LINES])[:MESSAGE_CHARACTERS] or "(no message)"


def user_place(error: BaseException, file: str) -> tuple[str, int | None]:
    """Return the innermost line of the user's own code in a traceback, else `file` with no line."""
    for frame in reversed(_frames(error.__traceback__)):
        if is_user_file(frame.filename):
            return frame.filename, frame.lineno
    return file, None


def is_user_file(path: str) -> bool:
    """Check whether a file is the user's: in the target's folder, or outside torch, the standard library, installed
    packages and this program, and not synthetic."""
    if _TARGET_FOLDERS and path.startswith(_TARGET_FOLDERS[-1]):
        return True
    if path.startswith(("<", *_PROGRAM_FOLDERS)):
        return False
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    return not path.startswith(_LIBRARY_FOLDERS)


def remember_target(file: str) -> None:
    """Count the target's own folder as the user's, also among installed packages."""
    _TARGET_FOLDERS[:] = [os.path.join(os.path.dirname(os.path.abspath(file)), "")]


_TARGET_FOLDERS: list[str] = []
_PROGRAM_FOLDERS = tuple(
    os.path.join(folder, "") for folder in (WORKER_FOLDER, os.path.join(os.path.dirname(WORKER_FOLDER), "process"))
)
"""The worker's folder, and that of the program that confines it and runs it."""


def _library_folders() -> tuple[str, ...]:
    paths = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        paths.append(os.path.dirname(str(torch.__file__)))
    return tuple(os.path.join(path, "") for path in paths)


_LIBRARY_FOLDERS = _library_folders()


def _frames(trace: TracebackType | None) -> traceback.StackSummary:
    return traceback.extract_tb(trace) if trace is not None else traceback.StackSummary()
