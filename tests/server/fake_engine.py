"""An engine that says what a test wrote down, when the test wants it: for results that no machine without a GPU has.

Its script is a JSON file named by FAKE_ENGINE_SCRIPT: for each method of a request a list of steps, done in order.
``{"event": {...}}`` is told of the job, ``{"until": "path"}`` waits for that file, ``{"result": {...}}`` and
``{"error": {...}}`` end it. Every request is appended to ``<script>.asked``, one JSON line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

POLL_S = 0.01
VARIABLE = "FAKE_ENGINE_SCRIPT"
SERVE = (
    sys.executable,
    "-c",
    f"import sys, kernel_lsp.engine.client as c; c.ENGINE = (sys.executable, {str(Path(__file__))!r}); "
    "from kernel_lsp.server.main import serve; sys.exit(serve())",
)
"""The server with this engine."""


def write_script(path: Path, **steps: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(steps))


def requests_of(script: Path) -> list[dict[str, Any]]:
    """Return what the server has asked so far."""
    asked = Path(f"{script}.asked")
    return [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def live(id_: str, steps: list[dict[str, Any]]) -> None:
    try:
        for step in steps:
            while "until" in step and not Path(step["until"]).exists():
                await asyncio.sleep(POLL_S)
            if "event" in step:
                say({"job": id_, "event": step["event"]})
            elif "until" not in step:
                say({"id": id_, "result": None, "error": None, **step})
    except asyncio.CancelledError:
        say({"id": id_, "error": {"kind": "cancelled", "message": "cancelled"}})


async def main() -> None:
    script = Path(os.environ[VARIABLE])
    tasks: dict[str, asyncio.Task[None]] = {}
    reader = asyncio.StreamReader(limit=1 << 26)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        request = json.loads(line)
        with Path(f"{script}.asked").open("a") as asked:
            asked.write(json.dumps(request) + "\n")
        if request["method"] == "cancel":
            task = tasks.get(request["job"])
            if task is not None:
                task.cancel()
            say({"id": request["id"], "result": {"found": task is not None}})
            continue
        steps = json.loads(script.read_text()).get(request["method"], [{"error": {"kind": "user", "message": "no"}}])
        tasks[request["id"]] = asyncio.create_task(live(request["id"], steps))


if __name__ == "__main__":
    asyncio.run(main())
