"""The commands `find_tools` and `run_tool`: profilers and sanitizers of the machine that this worker runs on.

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


def run_tool(request: dict[str, Any]) -> dict[str, Any]:
    """Run ``{"argv": [text or {"file": path}], "folder", "environment", "deadline_s", "report", "outputs": {"stdout":
    path, ...}}`` in `folder`. `report` is a file of the engine that the tool writes, or None.

    Answers ``{"returncode", "stderr", "timed_out", "elapsed_s", "has_report", "outputs": [{"path"}]}``: `outputs` are
    those of the request that were written.
    """
    folder, outputs = place_of(request["folder"]), request["outputs"]
    os.makedirs(folder, exist_ok=True)
    argv = [place_of(each["file"]) if isinstance(each, dict) else each for each in request["argv"]]
    started, timed_out, stderr = time.monotonic(), False, b""
    with open(place_of(outputs["stdout"]), "wb") as stdout:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, **request["environment"]},
        )
        try:
            _, stderr = process.communicate(timeout=request["deadline_s"])
        except subprocess.TimeoutExpired as overran:
            timed_out, stderr = True, overran.stderr or b""
            process.kill()
            process.wait()  # what it started ends with this process's group
    return {
        "returncode": process.returncode,
        "stderr": stderr[-STDERR_BYTES:].decode(errors="replace"),
        "timed_out": timed_out,
        "elapsed_s": time.monotonic() - started,
        "has_report": request["report"] is not None and os.path.isfile(place_of(request["report"])),
        "outputs": [{"path": path} for path in outputs.values() if os.path.isfile(place_of(path))],
    }
