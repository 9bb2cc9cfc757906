"""What an editor shows of a kernel on a machine with a GPU: `python benchmarks/server_on_gpu.py [OUT.json]`.

Exit 1 when something is missing.

A real server and a real engine, with `measureOnSave`: a kernel is saved, and its lens, hover and hints are asked for as
an editor does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.server.client import VSCODE, Client, initialized

EXAMPLE = "row_softmax"
SETTINGS = {"measureOnSave": True, "device": "auto"}
DEADLINE_S = 150.0


async def show() -> dict[str, Any]:
    """Everything that the editor got, by what it asked for, with the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".kernel-lsp").mkdir()
        for suffix in ("py", "cu"):
            (root / f"{EXAMPLE}.{suffix}").write_text((ROOT / "examples" / f"{EXAMPLE}.{suffix}").read_text())
        answers = {"workspace/configuration": lambda params: [SETTINGS for _ in params["items"]]}
        async with initialized(root, VSCODE, answers, trusted=True) as editor:
            return await _session(editor, root / f"{EXAMPLE}.cu")


async def _session(editor: Client, kernel: Path) -> dict[str, Any]:
    uri = editor.open(kernel)
    await editor.diagnostics(uri)
    await editor.until(lambda: editor.asked("workspace/configuration"))
    started = time.monotonic()
    editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    lens = await _until(lambda: _lens(editor, uri))
    measured_s = time.monotonic() - started
    line = next(i for i, text in enumerate(kernel.read_text().splitlines()) if "__global__" in text)
    hover = await editor.at("hover", uri, line, 4)
    actions = await editor.at("codeAction", uri, line)
    await editor.command("profile", uri=uri)
    told = await editor.until(lambda: editor.said("window/showMessage"), DEADLINE_S)
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 999, "character": 0}}
    hints = await editor.ask("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": whole})
    return {
        "lens": lens,
        "measured_s": round(measured_s, 1),
        "hover": hover["contents"]["value"],
        "actions": [action["title"] for action in actions],
        "profile": told[-1]["message"],
        "hints": [f"{hint['position']['line'] + 1}: {hint['label']}" for hint in hints],
        "diagnostics": [found["message"] for found in await editor.diagnostics(uri) if found["severity"] == 1],
    }


async def _lens(editor: Client, uri: str) -> str:
    """The check's lens once it has a verdict."""
    titles = [lens["command"]["title"] for lens in await editor.at("codeLens", uri)]
    return next((title for title in titles if title.startswith("Check now: ")), "")


async def _until(ask: Any) -> str:
    ending = time.monotonic() + DEADLINE_S
    while not (found := await ask()) and time.monotonic() < ending:
        await asyncio.sleep(0.5)
    return str(found)


def main() -> int:
    shown = asyncio.run(show())
    text = json.dumps(shown, indent=1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(text)
    is_complete = "vs eager" in shown["lens"] and "Measure now" in shown["actions"] and bool(shown["hints"])
    return int(not is_complete)


if __name__ == "__main__":
    sys.exit(main())
