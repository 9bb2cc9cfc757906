"""Read and write the recording of a workspace, `.kernel-lsp/recorded.json`. A recording is data that others may have
written: it is validated as a whole."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.recording import RecordedConfiguration, RecordedTarget, Recording, with_earlier
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.process.atomic_files import write_atomically
from kernel_lsp.source.inference.call_arguments import defaults_of
from kernel_lsp.source.python_file import FunctionNode

FILE_NAME = "recorded.json"
MAX_BYTES = 4 << 20
NEXT_STEP = "record again with `kernel-lsp record -- PROGRAM`, or delete the file"


def recording_file(workspace: Path) -> Path:
    """Return the path of a workspace's recording."""
    return workspace / FOLDER_NAME / FILE_NAME


def read_recording(workspace: Path) -> Recording | None:
    """Return the workspace's recording; None without one. Raises TargetError for an invalid file."""
    file = recording_file(workspace)
    try:
        status = file.stat()
    except OSError:
        return None
    return _read(file, status.st_mtime_ns, status.st_size)


def recorded_target(file: Path, symbol: str) -> RecordedTarget | None:
    """Return what a recording of the file's workspace says about a symbol. Raises TargetError for an invalid one."""
    workspace = find_workspace(file.parent)
    recording = read_recording(workspace)
    if recording is None:
        return None
    name = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace)).replace(os.sep, "/")
    return recording.targets.get(f"{name}::{symbol}")


def inputs_with_floats(configurations: Sequence[RecordedConfiguration], function: FunctionNode | None) -> list[str]:
    """Return the inputs of each configuration. Floats of `function` that some calls give are stated of the others by
    their defaults: a default is a constant of the kernels, which would serve no other value."""
    found = [each.inputs for each in configurations]
    for name, default in defaults_of(function).items() if function is not None else ():
        item = f", {name}="
        if isinstance(default, ast.Constant) and isinstance(default.value, float) and any(item in i for i in found):
            found = [inputs if item in inputs else f"{inputs}{item}{default.value}" for inputs in found]
    return found


def unstated_argument(file: Path, symbol: str) -> str:
    """Return the first argument that no pragma can state of the recorded calls of a symbol; empty where one can."""
    found = recorded_target(file, symbol)
    calls = found.configurations if found is not None else ()
    return calls[0].opaque[0] if calls and all(each.opaque for each in calls) else ""


def check_recording_can_be_written(workspace: Path) -> None:
    """Raise EnvironmentProblem where `write_recording` would, so that it is known before the program runs."""
    folder = recording_file(workspace).parent
    place = folder if folder.exists() else workspace
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise _not_writable(place, "permission denied" if place.is_dir() else "not a folder")


def _not_writable(place: Path, why: str) -> EnvironmentProblem:
    next_step = "make it writable, free some space, or run a copy of the project"
    return EnvironmentProblem(f"the recording cannot be written: {why}", file=str(place), next_step=next_step)


def write_recording(workspace: Path, recording: Recording) -> Path:
    """Write the recording, whole or not at all, and return its file. What other programs recorded before stays, for
    files that still exist. Raises EnvironmentProblem."""
    file = recording_file(workspace)
    recording = _with_others(workspace, recording)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        ignore = file.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        write_atomically(file, recording.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    except OSError as error:
        raise _not_writable(file.parent, error.strerror or str(error)) from error
    return file


def _with_others(workspace: Path, recording: Recording) -> Recording:
    try:
        earlier = read_recording(workspace)
    except TargetError:
        return recording  # an invalid file is replaced
    if earlier is None:
        return recording
    present = {name: each for name, each in earlier.targets.items() if (workspace / name.partition("::")[0]).exists()}
    return with_earlier(recording, earlier.model_copy(update={"targets": present}))


@lru_cache(maxsize=4)
def _read(file: Path, _modified_ns: int, size: int) -> Recording:
    if size > MAX_BYTES:
        raise TargetError(f"the recording is larger than {MAX_BYTES >> 20} MiB", file=str(file), next_step=NEXT_STEP)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"the recording cannot be read: {error}", file=str(file), next_step=NEXT_STEP) from None
    try:
        return Recording.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"the recording is invalid: {f'{where}: ' if where else ''}{first['msg']}"
        line = _line_of(text, first["loc"])
        raise TargetError(message, file=str(file), line=line, next_step=NEXT_STEP) from None


def _line_of(text: str, place: tuple[int | str, ...]) -> int:
    """Return the 1-based line of a validation error: that of the innermost key that the text has."""
    position = 0
    for key in place:
        found = text.find(f'"{key}"', position) if isinstance(key, str) else -1
        position = found if found >= 0 else position
    return text.count("\n", 0, position) + 1
