"""The commands `find_tools` and `run_tools`: profilers and sanitizers of the machine that this worker runs on.

A tool is a child in this process's group, so it ends with the connection that brought this worker. Paths of the engine
are `files.place_of` here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..files import place_of

VERSION_DEADLINE_S = 10.0
STDERR_BYTES = 8 << 10
"""Bytes of the end of stderr in an answer; stdout goes to a file."""
STDERR = ".stderr"
PROGRAM = Path(__file__).resolve().parents[1] / "__main__.py"


def find_tools(request: dict[str, Any]) -> dict[str, Any]:
    """Find ``{"names", "folders"}`` on the ``PATH``, then in `folders` -> ``{"tools": {name: {"path", "version_text",
    "problem"}}, "launcher": [argument]}``. `path` is empty for a missing tool; `launcher` begins the command line of a
    program of this worker."""
    search = os.pathsep.join([os.environ.get("PATH", ""), *request["folders"]])
    found = {name: _described(shutil.which(name, path=search)) for name in request["names"]}
    return {"tools": found, "launcher": [sys.executable, str(PROGRAM)]}


def _described(path: str | None) -> dict[str, str]:
    if path is None:
        return {"path": "", "version_text": "", "problem": ""}
    text, problem = "", ""
    try:
        ran = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_DEADLINE_S
        )
        text = (ran.stdout + ran.stderr).decode(errors="replace")
        problem = f"`--version` ended with {ran.returncode}" if ran.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer in {VERSION_DEADLINE_S:g} s"
    except OSError as error:
        problem = f"it does not start: {error}"
    return {"path": path, "version_text": text[:STDERR_BYTES], "problem": problem}


def run_tools(request: dict[str, Any]) -> dict[str, Any]:
    """Run ``{"runs": [{"argv": [text or {"file": path}], "folder", "stdout", "report"}], "environment", "deadline_s",
    "outputs": {name: path}}`` at once, each in its folder, with stdout in a file. `report` is a file of the engine that
    the tool writes, or None.

    Answers ``{"runs": [{"returncode", "stderr", "timed_out", "elapsed_s", "has_report"}], "outputs": [{"path"}]}``:
    `outputs` are those of the request that were written.
    """
    started = time.monotonic()
    running = [_start(run, request["environment"]) for run in request["runs"]]
    ends = started + request["deadline_s"]
    ended = [_ended(process, run, started, ends) for process, run in zip(running, request["runs"])]
    written = [path for path in request["outputs"].values() if os.path.isfile(place_of(path))]
    return {"runs": ended, "outputs": [{"path": path} for path in written]}


def _start(run: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a tool, whose stderr goes to a file beside that of stdout."""
    folder, stdout = place_of(run["folder"]), place_of(run["stdout"])
    os.makedirs(folder, exist_ok=True)
    argv = [place_of(each["file"]) if isinstance(each, dict) else each for each in run["argv"]]
    with open(stdout, "wb") as out, open(stdout + STDERR, "wb") as errors:
        return subprocess.Popen(
            argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env={**os.environ, **environment}
        )


def _ended(process: subprocess.Popen[bytes], run: dict[str, Any], started: float, ends: float) -> dict[str, Any]:
    """Wait for a tool up to its deadline, and describe its end."""
    timed_out = False
    try:
        process.wait(timeout=max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        timed_out = True
        process.kill()
        process.wait()  # what it started ends with this process's group
    with open(place_of(run["stdout"]) + STDERR, "rb") as file:
        stderr = file.read()[-STDERR_BYTES:]
    return {
        "returncode": process.returncode,
        "stderr": stderr.decode(errors="replace"),
        "timed_out": timed_out,
        "elapsed_s": time.monotonic() - started,
        "has_report": run["report"] is not None and os.path.isfile(place_of(run["report"])),
    }
