"""Run the user's program with the recorder in its interpreter, and combine what its processes recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from kernel_lsp.core.recording import RECORDING_VERSION, Recording
from kernel_lsp.errors import UserError

INJECTED = Path(__file__).parent / "injected"
VARIABLE = "_KERNEL_LSP_RECORD"
POLL_S = 0.05
GRACE_S = 10.0
"""Seconds that an interrupted program has to end, before SIGTERM and again before SIGKILL."""
SIGNAL_STATUS = 128
"""A shell's exit status of a program that a signal ended is this plus the signal's number."""


@dataclass(frozen=True)
class Ran:
    """A finished program. `recording` is None without a call of a target; `problem` then says why."""

    status: int
    recording: Recording | None
    problem: str = ""
    note: str = ""


def record(command: Sequence[str], workspace: Path, steps: int | None = None, seconds: float | None = None) -> Ran:
    """Run the command in this terminal until it ends, or until so many steps, or seconds since torch, are recorded.

    Raises UserError for a program that cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-record-") as folder:
        parts = Path(folder)
        with _hears_interrupts() if steps or seconds else nullcontext():
            process = _start(command, workspace, parts, steps, is_limited=bool(steps or seconds))
        status = _wait(process, parts, seconds)
        ran = _combined(command, status, _read_parts(parts))
        if seconds and ran.recording is None:
            return replace(ran, problem=f"{ran.problem}; --seconds {seconds:g} may be too short")
        return ran


def _start(
    command: Sequence[str], workspace: Path, parts: Path, steps: int | None, *, is_limited: bool
) -> subprocess.Popen[bytes]:
    root = os.path.realpath(workspace)
    request = {"root": root, "parts": str(parts), "steps": steps or 0, "is_limited": is_limited}
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        VARIABLE: json.dumps(request),
        "PYTHONPATH": os.pathsep.join([str(INJECTED), *([path] if path else [])]),
    }
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        is_script = command[0].endswith(".py")
        next_step = f"start it with an interpreter: python {command[0]}" if is_script else "check the command"
        raise UserError(f"it cannot be started: {error.strerror}", file=command[0], next_step=next_step) from None


@contextmanager
def _hears_interrupts() -> Iterator[None]:
    """Let a program that starts meanwhile be interrupted, also where a shell has put us into the background."""
    previous = signal.getsignal(signal.SIGINT)
    if previous == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, previous)


def _wait(process: subprocess.Popen[bytes], parts: Path, seconds: float | None) -> int:
    """Wait for the end. An interrupt is the program's: the terminal sends it to both. SIGTERM is passed on."""
    deadline: float | None = None
    with _Signals(process):
        while True:
            try:
                return _exit_status(process.wait(POLL_S))
            except subprocess.TimeoutExpired:
                found = _read_parts(parts)
            if seconds and deadline is None and any(part["has_torch"] for part in found):
                deadline = time.monotonic() + seconds
            if any(part["ended"] for part in found) or (deadline is not None and time.monotonic() > deadline):
                _end(process)
                return 0


class _Signals:
    """Handlers of this command while the program runs. A child never inherits them: they are functions."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
        self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._pass_on)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._process.send_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program as Ctrl-C does, so that it can clean up; by force if it does not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            process.wait(GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue


def _exit_status(returncode: int) -> int:
    return returncode if returncode >= 0 else SIGNAL_STATUS - returncode


def _read_parts(folder: Path) -> list[dict[str, Any]]:
    parts = []
    for file in sorted(folder.glob("*.json")):
        try:
            part = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(part, dict):
            parts.append(part)
    return parts


def _combined(command: Sequence[str], status: int, parts: Sequence[Mapping[str, Any]]) -> Ran:
    """Return the recording of the process that called targets the longest: ranks of one training are alike."""
    called = [part for part in parts if part.get("targets")]
    if not called:
        return Ran(status, None, _why_nothing(command, parts))
    part = max(called, key=lambda part: (part["n_steps"], _n_calls(part)))
    notes = [f"{len(called)} processes called targets; this is the one with the most steps"] if len(called) > 1 else []
    notes += [f"the recording ended early: {part['error']}"] if part["error"] else []
    notes += ["code inside torch.compile is not seen"] if part["compiled"] else []
    try:
        return Ran(status, _recording(command, part), note="; ".join(notes))
    except ValidationError as error:
        return Ran(status, None, f"what was recorded is invalid: {error.errors()[0]['msg']}")


def _n_calls(part: Mapping[str, Any]) -> int:
    return sum(target["n_calls"] for target in part["targets"].values())


def _recording(command: Sequence[str], part: Mapping[str, Any]) -> Recording:
    step_s = part["step_s"]
    targets = {name: _target(found, step_s) for name, found in part["targets"].items()}
    by_share = sorted(targets.items(), key=lambda item: (-item[1]["share"], -item[1]["n_calls"], item[0]))
    content = {
        "version": RECORDING_VERSION,
        "command": tuple(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": part["device"],
        "torch": part["torch"],
        "seconds": round(part["seconds"], 3),
        "n_steps": part["n_steps"],
        "step_us": round(step_s * 1e6, 3),
        "targets": dict(by_share),
    }
    return Recording.model_validate(content)


def _target(found: Mapping[str, Any], step_s: float) -> dict[str, Any]:
    forward_s, backward_s = found["forward_s"], found["backward_s"]
    others = {name: found[name] for name in ("n_calls", "n_calls_of_others", "is_module", "configurations")}
    share = min(1.0, (forward_s + backward_s) / step_s) if step_s else 0.0
    return {
        "share": round(share, 4),
        "forward_us": round(forward_s * 1e6, 3),
        "backward_us": round(backward_s * 1e6, 3),
        **others,
    }


def _why_nothing(command: Sequence[str], parts: Sequence[Mapping[str, Any]]) -> str:
    if not parts:
        return f"{command[0]} started no Python that can be recorded: -I, -E and -S keep the recorder out"
    with_torch = [part for part in parts if part["has_torch"]]
    if with_torch:
        error = next((part["error"] for part in with_torch if part["error"]), "")
        compiled = any(part["compiled"] for part in with_torch)
        hint = f" ({error})" if error else " (code inside torch.compile is not seen)" if compiled else ""
        return f"no function or module of the workspace was called with tensors{hint}"
    python = parts[0]["python"]
    is_missing = any(part["has_torch"] is False for part in parts)
    return f"torch is not installed for {python}" if is_missing else "the program never imported torch"
